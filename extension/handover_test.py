#!/usr/bin/env python3
"""hawser.hand_over(): what a session becomes, what stays the pooler's, and what others may not do with it.

    extension/handover_test.py [--pg-config PG_CONFIG]      (the extension is installed there: make install)

This is also the pooler's side of the protocol in a few lines: class Pooler. The last line is "N passed, N failed, N skipped".
"""

import argparse
import hashlib
import hmac
import os
import socket
import struct
import sys
import threading
import time

from report_test import Server
from harness import messages as m  # its path was set by report_test
from harness.wire import ServerError

SECRET = b"an example of a secret, which is longer than 32 bytes"
POOLER = 0x1234_5678_9ABC_DEF0
FIRST_ID = 0x400000

SETUP = """
create role pooler login;
create role alice login;
create role bob login;
create role sub nologin;
create role carol login connection limit 1;
create role dave login;
create role chief login superuser;
create role watcher login;
create role elsewhere login;
create role preloading login;
grant sub to alice;
grant pg_monitor to watcher;
create database private;
revoke connect on database private from public;
grant connect on database private to pooler;
grant alice to dave;
alter role alice set work_mem = '7MB';
alter role alice in database postgres set statement_timeout = '91s';
alter role bob set work_mem = '9MB';
alter role bob set my.tenant = 'of bob';
alter role elsewhere set role = 'none';
alter role dave set role = 'alice';
alter role preloading set session_preload_libraries = 'hawser';
alter role preloading set dynamic_library_path = '$libdir:/nowhere';
alter role preloading set seq_page_cost = 7;
grant pg_read_all_settings to pooler;
"""


def siphash(key, data):
    """SipHash-2-4, as the paper has it."""
    mask = (1 << 64) - 1
    def rotate(value, by):
        return (value << by | value >> 64 - by) & mask
    k0, k1 = struct.unpack("<QQ", key)
    v = [k0 ^ 0x736F6D6570736575, k1 ^ 0x646F72616E646F6D, k0 ^ 0x6C7967656E657261, k1 ^ 0x7465646279746573]
    def rounds(count):
        for _ in range(count):
            v[0] = (v[0] + v[1]) & mask
            v[1] = rotate(v[1], 13) ^ v[0]
            v[0] = rotate(v[0], 32)
            v[2] = (v[2] + v[3]) & mask
            v[3] = rotate(v[3], 16) ^ v[2]
            v[0] = (v[0] + v[3]) & mask
            v[3] = rotate(v[3], 21) ^ v[0]
            v[2] = (v[2] + v[1]) & mask
            v[1] = rotate(v[1], 17) ^ v[2]
            v[2] = rotate(v[2], 32)
    padded = data + bytes(7 - len(data) % 8) + bytes([len(data) & 255])
    for (word,) in struct.iter_unpack("<Q", padded):
        v[3] ^= word
        rounds(2)
        v[0] ^= word
    v[2] ^= 0xFF
    rounds(4)
    return v[0] ^ v[1] ^ v[2] ^ v[3]


assert siphash(bytes(range(16)), bytes(range(15))) == 0xA129CA6149BE45E5  # the paper's own example


def text(value):
    return struct.pack("!H", len(value)) + value


class Pooler:
    """A connection of the pooler's, and its side of the protocol."""

    def __init__(self, server, user="pooler", database="postgres", secret=SECRET, pooler=POOLER, **parameters):
        self.pooler = pooler
        self.client = server.target.connect(user, database, **{"hawser.hand_over": "on", **parameters})
        challenge = bytes.fromhex(self.client.parameters["hawser.challenge"])
        self.key = hmac.digest(secret, challenge, hashlib.sha256)[:16]
        self.number = 0
        self.pid = self.client.pid
        oid = self.client.value("select 'hawser.hand_over(bytea)'::pg_catalog.regprocedure::pg_catalog.oid")
        self.function = int(oid)

    def body(self, client=FIRST_ID + 7, user=None, address=("10.1.2.3", 4711), tls=None, alone=False, number=None, transport=None):
        self.number += 1
        flags = (1 if user else 0) | (2 if tls else 0) | (4 if alone else 0) | (8 if transport else 0)
        out = struct.pack("!BBQQI", 1, flags, self.number if number is None else number, self.pooler, client)
        if address is None:
            out += struct.pack("!BH", 0, 0)
        elif address == "unix":
            out += struct.pack("!BH", 1, 0)
        elif ":" in address[0]:
            out += struct.pack("!BH", 6, address[1]) + socket.inet_pton(socket.AF_INET6, address[0])
        else:
            out += struct.pack("!BH", 4, address[1]) + socket.inet_pton(socket.AF_INET, address[0])
        if user:
            out += text(user.encode())
        if tls:
            version, cipher, bits, subject, serial, issuer = tls
            out += struct.pack("!H", bits) + b"".join(text(part.encode()) for part in (version, cipher, subject, serial, issuer))
        if transport:
            out += struct.pack("!BBI", *transport)
        return out

    def sign(self, body):
        return m.function_call(self.function, [body + struct.pack("<Q", siphash(self.key, body))])

    def message(self, **about):
        return self.sign(self.body(**about))

    def hand_over(self, **about):
        result = self.client.exchange(self.message(**about))
        assert not result.errors, result.errors
        assert result.kinds.replace("S", "") == "VZ", result.kinds
        return self

    def release(self):
        return self.hand_over(client=0, address=None)

    def value(self, sql):
        return self.client.value(sql)

    def row(self, sql):
        return list(self.client.rows(sql)[0])

    def rows(self, sql):
        return [list(row) for row in self.client.rows(sql)]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.client.close()


def equal(got, expected):
    assert got == expected, f"{got!r}, expected {expected!r}"


def refused(pooler, sql, sqlstate):
    equal(pooler.client.attempt(sql).sqlstate, sqlstate)


def ended(result, sqlstate):
    """The session is over, with this error."""
    assert result.closed, f"the session goes on: {result.kinds} {result.errors}"
    equal((result.sqlstate, result.errors[0]["S"]), (sqlstate, "FATAL"))


# What a session becomes


def the_address_is_the_clients(server):
    with Pooler(server) as pooler:
        own = pooler.value("select inet_client_addr()")
        pooler.hand_over()
        equal(pooler.row("select inet_client_addr(), inet_client_port()"), ["10.1.2.3", "4711"])
        equal(pooler.row("select client_addr, client_port from pg_stat_activity where pid = pg_backend_pid()"), ["10.1.2.3", "4711"])
        pooler.hand_over(address=("2001:db8::7", 9))
        equal(pooler.row("select inet_client_addr(), inet_client_port()"), ["2001:db8::7", "9"])
        pooler.hand_over(address="unix")
        equal(pooler.row("select inet_client_addr(), client_port from pg_stat_activity where pid = pg_backend_pid()"), [None, "-1"])
        pooler.release()
        equal(pooler.value("select inet_client_addr()"), own)


def the_log_has_the_clients_address_and_user(server):
    with Pooler(server) as pooler:
        pooler.hand_over(user="alice", address=("10.99.98.97", 65))
        pooler.client.attempt("select 'logged here'::int")
    log = server.log.read_text(encoding="utf-8", errors="replace")
    line = next(line for line in log.splitlines() if "logged here" in line)
    assert line.startswith("<10.99.98.97 10.99.98.97(65) alice "), line


def tls_is_the_clients(server):
    tls = ("TLSv1.3", "TLS_AES_256_GCM_SHA384", 256, "/CN=alice", "17", "/CN=an issuer")
    sql = "select ssl, version, cipher, bits, client_dn, client_serial, issuer_dn from pg_stat_ssl where pid = pg_backend_pid()"
    with Pooler(server) as pooler:
        if pooler.value("select current_setting('ssl_library')") == "":
            return  # built without: there is no place to show it
        pooler.hand_over(tls=tls)
        equal(pooler.row(sql), ["t", "TLSv1.3", "TLS_AES_256_GCM_SHA384", "256", "/CN=alice", "17", "/CN=an issuer"])
        pooler.hand_over()
        equal(pooler.row(sql)[0], "f")


def the_user_is_the_clients_in_all_ways(server):
    with Pooler(server) as pooler:
        pooler.hand_over(user="alice")
        equal(pooler.row("select session_user, current_user, current_setting('is_superuser')"), ["alice", "alice", "off"])
        equal(pooler.value("select usename from pg_stat_activity where pid = pg_backend_pid()"), "alice")
        equal(pooler.client.parameters["session_authorization"], "alice")
        pooler.hand_over(user="bob")
        equal(pooler.row("select session_user, current_user"), ["bob", "bob"])
        pooler.release()
        equal(pooler.row("select session_user, current_user"), ["pooler", "pooler"])
        pooler.hand_over()
        equal(pooler.value("select session_user"), "pooler")


def no_statement_leads_back(server):
    with Pooler(server) as pooler:
        pooler.hand_over(user="alice")
        for sql in ("reset session authorization", "set session authorization default", "reset role", "set role none",
                    "reset all", "discard all", "begin; set local role none; rollback",
                    "select set_config('session_authorization', null, false)", "select set_config('role', null, false)"):
            pooler.client.attempt(sql)
            equal(pooler.row("select session_user, current_user"), ["alice", "alice"])
        for sql in ("set session authorization pooler", "set role pooler", "set role bob", "set session authorization bob",
                    "select set_config('session_authorization', 'pooler', false)", "select set_config('role', 'pooler', false)",
                    "begin; set local session authorization pooler"):
            assert pooler.client.attempt(sql).errors, sql
            pooler.client.attempt("rollback")
            equal(pooler.row("select session_user, current_user"), ["alice", "alice"])


def what_a_client_has_set_does_not_outlive_it(server):
    with Pooler(server) as pooler:
        pooler.hand_over(user="alice").client.execute("set role sub")
        equal(pooler.row("select session_user, current_user"), ["alice", "sub"])
        pooler.hand_over(user="alice")
        equal(pooler.row("select session_user, current_user"), ["alice", "alice"])
        pooler.client.execute("set role sub")
        pooler.hand_over(user="bob")
        equal(pooler.row("select session_user, current_user, current_setting('role')"), ["bob", "bob", "none"])
    with Pooler(server, "chief", secret=SECRET) as pooler:
        # one that may: its SET SESSION AUTHORIZATION ends with it, too
        pooler.hand_over().client.execute("set session authorization alice; set role sub")
        pooler.hand_over()
        equal(pooler.row("select session_user, current_user"), ["chief", "chief"])


def parallel_workers_have_the_clients_user(server):
    with server.target.connect("postgres", "postgres") as owner:
        owner.execute("create table if not exists big as select g from generate_series(1, 100000) g; "
                      "grant select on big to alice; "
                      "create or replace function who() returns text language sql stable parallel safe as 'select session_user::text || "
                      "current_user::text'")
    with Pooler(server) as pooler:
        pooler.hand_over(user="alice")
        pooler.client.execute("set parallel_setup_cost = 0; set parallel_tuple_cost = 0; set min_parallel_table_scan_size = 0")
        equal(pooler.rows("select distinct who() from big where g % 7 = 0"), [["alicealice"]])


def settings_of_the_role_come_and_go(server):
    sql = ("select current_setting('work_mem'), current_setting('statement_timeout'), current_setting('my.tenant', true), "
           "(select source from pg_settings where name = 'work_mem')")
    with Pooler(server) as pooler:
        own = pooler.row(sql)
        equal(own, ["4MB", "0", None, "default"])
        pooler.hand_over(user="alice")
        equal(pooler.row(sql)[:2], ["7MB", "91s"])
        pooler.client.execute("set work_mem = '1MB'; reset work_mem; set statement_timeout = 5; reset all")
        equal(pooler.row(sql)[:2], ["7MB", "91s"])
        pooler.hand_over(user="bob")
        equal(pooler.row(sql)[:3], ["9MB", "0", "of bob"])
        pooler.hand_over(user="alice")
        # a custom name never goes away: only its value does
        equal(pooler.row(sql)[:3], ["7MB", "91s", ""])
        pooler.release()
        equal(pooler.row(sql)[:2] + pooler.row(sql)[3:], ["4MB", "0", "default"])
        # and what the file says later is in force again
        pooler.client.execute("reset all")
        with server.target.connect("postgres", "postgres") as owner:
            owner.execute("alter system set work_mem = '5MB'")
            owner.execute("select pg_reload_conf()")
            wait_for(lambda: pooler.value("show work_mem") == "5MB")
            pooler.hand_over(user="alice")
            equal(pooler.value("show work_mem"), "7MB")
            pooler.release()
            equal(pooler.value("show work_mem"), "5MB")
            owner.execute("alter system reset work_mem")
            owner.execute("select pg_reload_conf()")
            wait_for(lambda: pooler.value("show work_mem") == "4MB")


def settings_that_only_superusers_see_come_and_go(server):
    sql = "select current_setting('dynamic_library_path'), current_setting('session_preload_libraries'), current_setting('seq_page_cost')"
    with Pooler(server) as pooler:
        own = ["$libdir", "", "1"]
        equal(pooler.row(sql), own)
        pooler.hand_over(user="preloading")
        equal(pooler.row("select session_user, current_setting('seq_page_cost')"), ["preloading", "7"])
        equal(pooler.client.attempt("show dynamic_library_path").sqlstate, "42501")
        pooler.release()
        equal(pooler.row(sql), own)
        pooler.client.execute("reset all")
        equal(pooler.row(sql), own)


def a_role_of_alter_role_is_set_and_undone(server):
    with Pooler(server) as pooler:
        pooler.hand_over(user="dave")
        equal(pooler.row("select session_user, current_user"), ["dave", "alice"])
        pooler.client.execute("set role none")
        pooler.hand_over(user="dave")
        equal(pooler.row("select session_user, current_user"), ["dave", "alice"])
        pooler.hand_over(user="bob")
        equal(pooler.row("select session_user, current_user, current_setting('role')"), ["bob", "bob", "none"])
        pooler.release()
        equal(pooler.row("select session_user, current_user"), ["pooler", "pooler"])


def limits_of_a_role_hold(server):
    with Pooler(server) as first, Pooler(server) as second:
        first.hand_over(user="carol")
        first.hand_over(user="carol")
        result = second.client.exchange(second.message(user="carol", alone=True))
        equal((result.sqlstate, result.closed), ("53300", False))
        equal(second.value("select session_user"), "pooler")
        first.hand_over(user="alice")
        second.hand_over(user="carol")


def a_role_that_may_not_connect_is_refused(server):
    with Pooler(server, database="private") as pooler:
        result = pooler.client.exchange(pooler.message(user="alice", alone=True))
        equal((result.sqlstate, result.closed), ("42501", False))
    with Pooler(server) as pooler:
        for role, sqlstate in (("sub", "28000"), ("nobody", "28000")):
            equal(pooler.client.exchange(pooler.message(user=role, alone=True)).sqlstate, sqlstate)


def a_superuser_is_not_for_a_pooler_that_is_none(server):
    with Pooler(server) as pooler:
        equal(pooler.client.exchange(pooler.message(user="chief", alone=True)).sqlstate, "42501")
        equal(pooler.value("select session_user"), "pooler")


# Attacks


def what_was_sent_behind_a_refusal_does_not_run(server):
    with server.target.connect("postgres", "postgres") as owner:
        owner.execute("create table if not exists ran (who text); grant insert on ran to public; truncate ran")
    with Pooler(server) as pooler:
        pooler.hand_over(user="alice")
        result = pooler.client.exchange(pooler.message(user="sub"), m.query("insert into ran values (session_user)"))
        ended(result, "28000")
    with server.target.connect("postgres", "postgres") as owner:
        equal(owner.value("select count(*) from ran"), "0")


def only_the_poolers_role_hands_over_to_others(server):
    with Pooler(server, "bob") as pooler:
        pooler.hand_over()  # an address is no right
        equal(pooler.value("select inet_client_addr()"), "10.1.2.3")
        equal(pooler.client.exchange(pooler.message(user="alice", alone=True)).sqlstate, "42501")
        pooler.hand_over(user="bob")
        ended(pooler.client.exchange(pooler.message(user="alice")), "42501")


def another_secret_ends_the_session(server):
    with Pooler(server, secret=b"x" * 40) as pooler:
        ended(pooler.client.exchange(pooler.message(user="alice")), "42501")


def every_changed_byte_ends_the_session(server):
    with Pooler(server) as pooler:
        length = len(pooler.body(user="alice")) + 8
    for at in range(0, length, 5):
        with Pooler(server) as pooler:
            good = pooler.body(user="alice")
            good += struct.pack("<Q", siphash(pooler.key, good))
            bad = good[:at] + bytes([good[at] ^ 1]) + good[at + 1:]
            ended(pooler.client.exchange(m.function_call(pooler.function, [bad])), "42501")


def a_message_counts_once_and_in_its_session_only(server):
    with Pooler(server) as pooler, Pooler(server) as other:
        message = pooler.message(user="alice")
        assert not pooler.client.exchange(message).errors
        ended(other.client.exchange(message), "42501")
        ended(pooler.client.exchange(message), "08P01")
    with Pooler(server) as pooler:
        pooler.hand_over()
        ended(pooler.client.exchange(pooler.message(number=3)), "08P01")


def malformed_messages_end_the_session(server):
    for change in (lambda b: b"", lambda b: b"\1", lambda b: b[:-1], lambda b: b + b"\0", lambda b: b"\2" + b[1:],
                   lambda b: b[:1] + b"\x80" + b[2:], lambda b: b[:22] + b"\7" + b[23:],
                   lambda b: b[:-7] + struct.pack("!H", 60000) + b"alice", lambda b: b[:-5] + b"al\0ce",
                   lambda b: b + bytes(4000)):
        with Pooler(server) as pooler:
            result = pooler.client.exchange(pooler.sign(change(pooler.body(user="alice"))))
            assert result.closed and result.errors[0]["S"] == "FATAL", result.errors


def a_statement_is_no_hand_over(server):
    with Pooler(server) as pooler:
        body = pooler.body(user="alice")
        body += struct.pack("<Q", siphash(pooler.key, body))
        ended(pooler.client.attempt(f"select hawser.hand_over('\\x{body.hex()}')"), "25001")
    with Pooler(server) as pooler:
        pooler.client.execute("begin")
        ended(pooler.client.exchange(pooler.message()), "25001")


def a_client_that_calls_it_is_cut_off(server):
    with Pooler(server) as pooler:
        pooler.hand_over(user="alice")
        ended(pooler.client.attempt("select hawser.hand_over('\\x01')"), "42501")
    with server.target.connect("alice", "postgres") as client:
        ended(client.attempt("select hawser.hand_over('\\x01')"), "42501")
    # one that did not ask has a key of nothing
    with server.target.connect("pooler", "postgres") as client, Pooler(server) as pooler:
        pooler.key = bytes(16)
        ended(client.exchange(pooler.message(user="alice")), "42501")


def nothing_of_it_can_be_read_or_set(server):
    with Pooler(server) as pooler:
        pooler.hand_over(user="alice")
        for name in ("hawser.secret_file",):
            equal(pooler.client.attempt(f"show {name}").sqlstate, "42501")
        for sql in ("set hawser.challenge = 'x'", "set hawser.hand_over = on", "set hawser.pooler_role = 'alice'",
                    "alter role alice set hawser.pooler_role = 'alice'", "set hawser.secret_file = 'x'",
                    "set hawser.control_sockets = 'x'"):
            assert pooler.client.attempt(sql).errors, sql
        challenge = pooler.value("show hawser.challenge")
        assert len(challenge) == 32 and bytes.fromhex(challenge) not in pooler.key
    log = server.log.read_bytes()
    assert SECRET not in log and SECRET.hex().encode() not in log
    with server.target.connect("alice", "postgres") as client:
        equal(client.value("show hawser.challenge"), "")


def arguments_are_in_no_log(server):
    with Pooler(server):
        with server.target.connect("postgres", "postgres") as owner:
            owner.execute("alter role pooler set log_statement = 'all'; alter role pooler set log_min_duration_statement = 0")
        with Pooler(server) as logged:
            body = logged.body(user="bob")
            mac = struct.pack("<Q", siphash(logged.key, body))
            logged.client.exchange(m.function_call(logged.function, [body + mac]))
        with server.target.connect("postgres", "postgres") as owner:
            owner.execute("alter role pooler reset all")
    log = server.log.read_bytes()
    assert b"fastpath function call: \"hand_over\"" in log
    assert mac.hex().encode() not in log and mac not in log


# Process ids


def wait_for(condition, seconds=10):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds} s"
        time.sleep(0.02)


def sleeping(server, pooler):
    with server.target.connect("postgres", "postgres") as owner:
        owner.execute("set hawser.client_pids = off")
        wait_for(lambda: owner.value(f"select wait_event from pg_stat_activity where pid = {pooler.pid}") == "PgSleep")


def cancelled_by(server, user, sql, expected):
    """What a client of alice's sees when `user` runs this while it sleeps; (answer or SQLSTATE, cancelled)."""
    with Pooler(server) as pooler, server.target.connect(user, "postgres") as other:
        pooler.hand_over(user="alice", client=FIRST_ID + 77)
        pooler.client.send(m.query("select pg_sleep(20)"))
        sleeping(server, pooler)
        answer = other.attempt(sql)
        equal(answer.sqlstate or answer.value, expected)
        if expected != "t":
            assert not pooler.client.pending(0.3), "it was cancelled"
            with server.target.connect("postgres", "postgres") as owner:
                owner.execute(f"select pg_terminate_backend({pooler.pid}, 5000)")
            return None
        return pooler.client.collect()


def the_process_id_of_a_client_can_be_cancelled(server):
    for sql in (f"select pg_cancel_backend({FIRST_ID + 77})", f"select pg_cancel_backend(p) from (values ({FIRST_ID + 77})) v(p)",
                f"select bool_and(pg_cancel_backend(pid)) from hawser.hawser_sessions where pid = {FIRST_ID + 77}"):
        equal(cancelled_by(server, "postgres", sql, "t").sqlstate, "57014")
    equal(cancelled_by(server, "postgres", f"select pg_terminate_backend({FIRST_ID + 77})", "t").sqlstate, "57P01")
    equal(cancelled_by(server, "postgres", f"select pg_terminate_backend({FIRST_ID + 77}, 5000)", "t").sqlstate, "57P01")


def sql_knows_a_client_by_its_id_while_its_backend_works_for_it(server):
    """A pooler elsewhere: nobody is asked."""
    seen = "select pid from pg_stat_activity where backend_type = 'client backend' and pid <> pg_backend_pid()"
    own = ("select pg_backend_pid(), a.pid, l.pid from pg_stat_activity a join pg_locks l using (pid) "
           "where pid = pg_backend_pid() and locktype = 'virtualxid'")
    with Pooler(server) as pooler, server.target.connect("postgres", "postgres") as owner:
        wait_for(lambda: owner.rows(seen) == [(str(pooler.pid),)])
        for client in (FIRST_ID + 5, FIRST_ID + 6):
            pooler.hand_over(user="alice", client=client)
            equal(pooler.rows(own), [[str(client)] * 3])
            equal(owner.rows(seen), [(str(pooler.pid),)])  # it may serve nobody now
            pooler.client.execute("begin; select pg_advisory_xact_lock(1)")
            equal(owner.rows(seen), [(str(client),)])
            equal(owner.value("select pid from pg_locks where locktype = 'advisory'"), str(client))
            equal(owner.value(f"select pid from pg_stat_get_activity({client})"), str(client))
            with server.target.connect("postgres", "postgres") as waiter:
                waiter.send(m.query("select pg_advisory_lock(1)"))
                wait_for(lambda: owner.value(f"select pg_blocking_pids({waiter.pid})") == "{%d}" % client)
                pooler.client.execute("commit")
                waiter.collect()
            owner.execute("set hawser.client_pids = off")
            wait_for(lambda: owner.rows(seen) == [(str(pooler.pid),)])  # the waiter has gone, too
            owner.execute("reset hawser.client_pids")
        pooler.release()
        equal(pooler.rows("select pg_backend_pid()"), [[str(pooler.pid)]])


def an_id_of_clients_of_two_poolers_means_neither(server):
    client = FIRST_ID + 5
    with (Pooler(server) as one, Pooler(server, pooler=POOLER + 1) as other, server.target.connect("postgres", "postgres") as owner,
          server.target.connect("postgres", "postgres") as gate):
        gate.execute("select pg_advisory_lock(1)")
        for pooler in (one, other):
            pooler.hand_over(client=client)
            pooler.client.send(m.query("select pg_advisory_lock(1), pg_advisory_unlock(1)"))
        wait_for(lambda: owner.value("select count(*) from pg_locks where locktype = 'advisory' and not granted") == "2")
        for sql, expected in ((f"select pg_blocking_pids({client})", "{}"), (f"select pg_cancel_backend({client})", "f")):
            result = owner.attempt(sql)
            equal((result.value, [notice["M"] for notice in result.notices]), (expected, [f"2 clients have the process id {client}"]))
        # one that is idle has no backend
        gate.execute("select pg_advisory_unlock(1)")
        for pooler in (one, other):
            pooler.client.collect()
        gate.execute("select pg_advisory_lock(1)")
        other.client.send(m.query("select pg_advisory_lock(1), pg_advisory_unlock(1)"))
        wait_for(lambda: owner.value(f"select pg_blocking_pids({client})") == "{%d}" % gate.pid)
        gate.execute("select pg_advisory_unlock(1)")
        other.client.collect()


def a_client_is_one_on_whichever_connections_it_has_been(server):
    client = FIRST_ID + 5
    with Pooler(server) as before, Pooler(server) as now, server.target.connect("postgres", "postgres") as owner:
        before.hand_over(client=client)
        now.hand_over(client=client)
        now.client.send(m.query("select pg_sleep(20)"))
        sleeping(server, now)
        equal(owner.rows("select backend, state from hawser.hawser_sessions"), [(str(now.pid), "active")])
        result = owner.attempt(f"select pg_cancel_backend({client})")
        equal((result.value, result.notices), ("t", []))
        equal(now.client.collect().sqlstate, "57014")
        equal(before.value("select 1"), "1")
        now.client.send(m.query("select pg_sleep(20)"))
        sleeping(server, now)
        # The other backend's slot has the client still.
        result = owner.attempt(f"select pg_terminate_backend({client}, 5000)")
        equal((result.value, result.notices), ("t", []))


def statistics_of_a_backend_take_its_clients_id(server):
    with Pooler(server) as pooler, server.target.connect("postgres", "postgres") as owner:
        if owner.value("select to_regprocedure('pg_stat_get_backend_io(int)')") is None:
            return  # before 18
        pooler.hand_over(user="alice", client=FIRST_ID + 5)
        pooler.client.execute("begin")
        equal(owner.value(f"select count(*) > 0 from pg_stat_get_backend_io({FIRST_ID + 5})"), "t")
        resets = f"select wal_records is null, stats_reset is null from pg_stat_get_backend_wal({FIRST_ID + 5})"
        equal(owner.rows(resets), [("f", "t")])
        owner.execute(f"select pg_stat_reset_backend_stats({FIRST_ID + 5})")
        equal(owner.rows(resets), [("f", "f")])
        pooler.client.execute("commit")


def a_constant_id_means_the_backend_that_the_client_has_at_each_call(server):
    """One transaction asks twice, with one expression; the client moves in between."""
    moving, staying = FIRST_ID + 5, FIRST_ID + 6
    waiting = "select count(*) from pg_locks where locktype = 'advisory' and not granted and objid = {}"
    asks = ("do $$ begin for turn in 1..2 loop "
            f"raise notice '%', pg_blocking_pids({moving}); "
            "perform pg_advisory_lock(3); perform pg_advisory_unlock(3); perform pg_sleep(0.05); end loop; end $$")
    with (Pooler(server) as one, Pooler(server) as two, server.target.connect("postgres", "postgres") as first,
          server.target.connect("postgres", "postgres") as second, server.target.connect("postgres", "postgres") as gate,
          server.target.connect("postgres", "postgres") as asking):
        def wait(holder, waiter, lock):
            holder.execute(f"select pg_advisory_lock({lock})")
            waiter.client.send(m.query(f"select pg_advisory_lock({lock}), pg_advisory_unlock({lock})"))
            wait_for(lambda: gate.value(waiting.format(lock)) == "1")

        gate.execute("select pg_advisory_lock(3)")
        one.hand_over(client=moving)
        two.hand_over(client=staying)
        wait(first, one, 1)
        wait(second, two, 2)
        asking.send(m.query(asks))
        wait_for(lambda: gate.value(waiting.format(3)) == "1")
        for holder, waiter in ((first, one), (second, two)):
            holder.execute("select pg_advisory_unlock_all()")
            waiter.client.collect()
        one.hand_over(client=staying)
        two.hand_over(client=moving)
        wait(second, two, 2)
        gate.execute("select pg_advisory_unlock(3)")
        equal([notice["M"] for notice in asking.collect().notices], ["{%d}" % first.pid, "{%d}" % second.pid])
        second.execute("select pg_advisory_unlock_all()")
        two.client.collect()


def after_an_upgrade_of_the_server_none_or_all_are_replaced(server):
    """As pg_upgrade leaves it: a function of ours has other columns than the server's."""
    with Pooler(server) as pooler, server.target.connect("postgres", "postgres") as owner:
        pooler.hand_over(user="alice", client=FIRST_ID + 5)
        equal(pooler.rows("select pg_backend_pid()"), [[str(FIRST_ID + 5)]])
        definition = owner.value("select pg_get_functiondef('hawser.pg_lock_status()'::regprocedure)")
        owner.execute("begin")
        owner.execute("alter extension hawser drop function hawser.pg_lock_status(); drop function hawser.pg_lock_status()")
        owner.execute(definition.replace("OUT pid integer", "OUT pid bigint"))
        owner.execute("commit")
        try:
            equal(pooler.rows("select pg_backend_pid()"), [[str(pooler.pid)]])
            assert pooler.rows("select pid from pg_locks where pid = pg_backend_pid()")
            equal(owner.value(f"select pg_cancel_backend({FIRST_ID + 5})"), "t")
        finally:
            owner.execute(f"begin; drop function hawser.pg_lock_status(); {definition}; alter extension hawser add function "
                          f"hawser.pg_lock_status(); commit")
        equal(pooler.rows("select pg_backend_pid()"), [[str(FIRST_ID + 5)]])


def rights_are_those_of_the_server(server):
    sql = f"select pg_cancel_backend({FIRST_ID + 77})"
    equal(cancelled_by(server, "alice", sql, "t").sqlstate, "57014")
    equal(cancelled_by(server, "dave", sql, "t").sqlstate, "57014")
    cancelled_by(server, "bob", sql, "42501")
    cancelled_by(server, "pooler", sql, "42501")
    with server.target.connect("postgres", "postgres") as owner:
        owner.execute("revoke execute on function pg_cancel_backend(int) from public")
        try:
            cancelled_by(server, "dave", sql, "42501")
        finally:
            owner.execute("grant execute on function pg_cancel_backend(int) to public")


def the_servers_own_ids_are_as_ever(server):
    with server.target.connect("alice", "postgres") as client:
        with server.target.connect("alice", "postgres") as other:
            equal(client.value(f"select pg_cancel_backend({other.pid})"), "t")
            equal(client.value(f"select pg_terminate_backend({other.pid}, 5000)"), "t")
            assert other.is_closed()
        nobody = client.attempt("select pg_cancel_backend(4194300)")
        assert nobody.value == "f" and "is not a PostgreSQL" in nobody.notices[0]["M"], nobody.notices
        nobody = client.attempt(f"select pg_cancel_backend({FIRST_ID + 1234567})")
        assert nobody.value == "f" and "is not a PostgreSQL" in nobody.notices[0]["M"], nobody.notices
        equal(client.value("select pg_cancel_backend(null)"), None)


def a_schema_of_the_name_alone_is_nothing(server):
    with server.target.connect("postgres", "postgres") as owner:
        owner.execute("create database trap owner bob")
    with server.target.connect("bob", "trap") as trapper:
        trapper.execute("create schema hawser; grant usage on schema hawser to public; create function hawser.cancel_backend(pid int) "
                        "returns bool language plpgsql as $$ begin raise exception 'trapped %', current_user; end $$")
    with server.target.connect("postgres", "trap") as owner:
        equal(owner.value("select pg_cancel_backend(4194300)"), "f")


def the_next_client_is_never_cancelled(server):
    """Cancels of one client rain while the backend goes from one to the other: the other never sees one."""
    stop = threading.Event()

    def rain():
        with server.target.connect("postgres", "postgres") as other:
            while not stop.is_set():
                other.attempt(f"set client_min_messages = error; select pg_cancel_backend({FIRST_ID + 1})")

    threads = [threading.Thread(target=rain) for _ in range(2)]
    for thread in threads:
        thread.start()
    hits = 0
    try:
        with Pooler(server) as pooler:
            for turn in range(600):
                first = pooler.client.exchange(pooler.message(client=FIRST_ID + 1), m.query("select pg_sleep(0.001)"))
                hits += first.sqlstate == "57014"
                second = pooler.client.exchange(pooler.message(client=FIRST_ID + 2), m.query("select count(*) from pg_class"))
                assert not second.errors, f"turn {turn}: {second.errors}"
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert hits > 0, "no cancel has hit the first client: nothing was tried"


# hawser_sessions


def clients_at_work_are_in_the_view(server):
    columns = "pid, client_addr, client_port, datname, usename, application_name, backend, local"
    with Pooler(server) as pooler, Pooler(server) as other:
        pooler.hand_over(user="alice", client=FIRST_ID + 9).client.execute("set application_name = 'mine'")
        other.hand_over(user="bob", client=FIRST_ID + 10, address="unix")
        expected = [str(FIRST_ID + 9), "10.1.2.3", "4711", "postgres", "alice", "mine", str(pooler.pid), "f"]
        bobs = [str(FIRST_ID + 10), None, None, "postgres", "bob", "", str(other.pid), "f"]
        equal(pooler.rows(f"select {columns} from hawser.hawser_sessions"), [expected])
        equal(other.rows(f"select {columns} from hawser.hawser_sessions"), [bobs])
        for user, count in (("watcher", 2), ("postgres", 2), ("pooler", 2), ("dave", 1), ("carol", 0)):
            with server.target.connect(user, "postgres") as client:
                equal((user, len(client.rows("select pid from hawser.hawser_sessions"))), (user, count))
        pooler.release()
    with server.target.connect("postgres", "postgres") as owner:
        wait_for(lambda: owner.value("select count(*) from hawser.hawser_sessions") == "0")


def the_transport_is_what_the_pooler_has_told(server):
    columns = "pid, mptcp, fallback, subflows, local_token, remote_token, bytes_sent, subflow_rates, pooler"
    token = 0xFEDC_BA98
    with Pooler(server) as pooler:
        equal(pooler.value("show hawser.hand_over_flags"), "15")
        for transport, expected in (((1, 5, token), ["t", "f", "5", str(token), None]), ((3, 1, 0), ["t", "t", "1", None, None]),
                                    ((0, 0, 0), ["f", None, None, None, None]), (None, [None] * 5)):
            pooler.hand_over(user="alice", client=FIRST_ID + 9, transport=transport, tls=("TLSv1.3", "A", 256, "", "", ""))
            sql = f"select {columns} from hawser.pg_stat_mptcp where pooler is not null"
            row = [str(FIRST_ID + 9), *expected, None, None, f"{POOLER:016x}"]
            equal(pooler.rows(sql), [row])
            for user, seen in (("watcher", [row]), ("postgres", [row]), ("carol", [])):
                with server.target.connect(user, "postgres") as client:
                    equal((user, [list(one) for one in client.rows(sql)]), (user, seen))
        pooler.release()
        equal(pooler.rows("select pid from hawser.pg_stat_mptcp where pooler is not null"), [])


def many_hand_overs_take_no_memory(server):
    """100,000 hand-overs between three users: the process is not larger at the end than after the first thousands."""
    def resident(pid):
        with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("Anonymous:"))

    with Pooler(server, **{"hawser.report": "on"}) as pooler:
        size = 0
        for turn in range(200):
            batch = b"".join(pooler.message(user=("alice", "bob", None)[n % 3], client=FIRST_ID + n) + m.query("select 1")
                             for n in range(25 * 10))
            result = pooler.client.exchange(batch)
            assert not result.errors, result.errors
            if turn == 20:
                size = resident(pooler.pid)
        grown = resident(pooler.pid) - size
        assert grown < 256, f"{grown} KiB more"


TESTS = [the_address_is_the_clients, the_log_has_the_clients_address_and_user, tls_is_the_clients, the_user_is_the_clients_in_all_ways,
         no_statement_leads_back, what_a_client_has_set_does_not_outlive_it, parallel_workers_have_the_clients_user,
         settings_of_the_role_come_and_go, settings_that_only_superusers_see_come_and_go, a_role_of_alter_role_is_set_and_undone,
         limits_of_a_role_hold,
         a_role_that_may_not_connect_is_refused, a_superuser_is_not_for_a_pooler_that_is_none,
         what_was_sent_behind_a_refusal_does_not_run, only_the_poolers_role_hands_over_to_others, another_secret_ends_the_session,
         every_changed_byte_ends_the_session, a_message_counts_once_and_in_its_session_only, malformed_messages_end_the_session,
         a_statement_is_no_hand_over, a_client_that_calls_it_is_cut_off, nothing_of_it_can_be_read_or_set, arguments_are_in_no_log,
         the_process_id_of_a_client_can_be_cancelled, sql_knows_a_client_by_its_id_while_its_backend_works_for_it,
         an_id_of_clients_of_two_poolers_means_neither, a_client_is_one_on_whichever_connections_it_has_been,
         statistics_of_a_backend_take_its_clients_id, a_constant_id_means_the_backend_that_the_client_has_at_each_call,
         after_an_upgrade_of_the_server_none_or_all_are_replaced, rights_are_those_of_the_server, the_servers_own_ids_are_as_ever,
         a_schema_of_the_name_alone_is_nothing, the_next_client_is_never_cancelled, clients_at_work_are_in_the_view,
         the_transport_is_what_the_pooler_has_told,
         many_hand_overs_take_no_memory]


class WithSecret(Server):
    """The secret's file is the server's, as of the start."""

    def start(self, options=""):
        path = self.directory / "secret"
        path.write_bytes(SECRET + b"\n")
        path.chmod(0o600)
        if os.geteuid() == 0:
            import shutil
            shutil.chown(path, "postgres")
        super().start(options)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pg-config", default=os.environ.get("PG_CONFIG", "pg_config"))
    parser.add_argument("-k", default="")
    arguments = parser.parse_args()
    failures = 0
    server = WithSecret(arguments.pg_config)
    server.settings += (f"hawser.secret_file = '{server.directory}/secret'\nhawser.pooler_role = 'pooler'\n"
                        "log_line_prefix = '<%h %r %u '\n")
    tests = [test for test in TESTS if arguments.k in test.__name__]
    with server:
        print(server.version)
        with server.target.connect("postgres", "postgres") as owner:
            for statement in SETUP.split(";"):
                if statement.strip():
                    owner.execute(statement)
            owner.execute("create extension hawser")
        with server.target.connect("postgres", "private") as owner:
            owner.execute("create extension hawser")
        for test in tests:
            try:
                test(server)
                print(f"ok      {test.__name__}")
            except (AssertionError, OSError, ServerError) as error:
                failures += 1
                print(f"FAILED  {test.__name__}: {type(error).__name__}: {error}")
    print(f"{len(tests) - failures} passed, {failures} failed, 0 skipped")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
