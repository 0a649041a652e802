"""Clients in TLS whose sessions the kernel has (kTLS): they go over to a new process, and to their server.

Where this machine's kernel has none, all of it runs in another one, in an emulator: `make test-kernel` fetches that, and
runs these.
"""

import contextlib
import ctypes
import functools
import os
import re
import shutil
import ssl
import subprocess
import tempfile
import threading

from harness import emulator, extension
from harness import messages as m
from harness.pooler import binary
from harness.suite import Skip, equal, has_ktls, limit, pooler_only, until
from integration.test_inside import connect, goes_in, inside, states
from integration.test_session_extension import library
from integration.test_takeover import ended, reaped, take_over

SAME_FOR_ALL_SERVERS = True
ALONE = "processes"

# The emulated machine is slow, and this one may be busy.
PATIENCE_SECONDS = 120
EMULATOR_SECONDS = 1500
VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
SUITES = [("TLSv1.2", "ECDHE-ECDSA-AES128-GCM-SHA256"), ("TLSv1.2", "ECDHE-ECDSA-AES256-GCM-SHA384"),
          ("TLSv1.2", "ECDHE-ECDSA-CHACHA20-POLY1305"), ("TLSv1.3", "TLS_AES_128_GCM_SHA256"),
          ("TLSv1.3", "TLS_AES_256_GCM_SHA384"), ("TLSv1.3", "TLS_CHACHA20_POLY1305_SHA256")]
ROWS = 3000


@functools.cache
def in_the_emulator(env):
    """What all of these tests say there."""
    if os.geteuid() != 0:
        raise Skip("this kernel has no kTLS, and the emulator needs root")
    if not (emulator.KERNEL / "tls.ko").exists():
        raise Skip(f"this kernel has no kTLS, and there is none in {emulator.KERNEL}: `make bpf-kernel` fetches one that has")
    command = ["python3", "tests/run.py", "-k", "test_tls_kernel"]
    words = {"PYTHONDONTWRITEBYTECODE": 1, "HAWSER": binary(), "PATH": os.environ["PATH"], "PG_BIN": env.cluster.bin}
    # (/tmp is another one there.)
    with tempfile.TemporaryDirectory(dir=emulator.KERNEL) as directory:
        words[extension.BUILT] = shutil.copy(library(env), directory)
        try:
            said = emulator.run(command, words, EMULATOR_SECONDS, emulator.TLS_MODULES)
        except subprocess.TimeoutExpired as late:
            said = f"{(late.stdout or b'').decode(errors='replace')}\nnot within {EMULATOR_SECONDS} s"
    print(said)
    return said


def kernels_own(test):
    """Of tests that need it."""
    @pooler_only
    @limit(EMULATOR_SECONDS + 60)
    @functools.wraps(test)
    def run(env):
        if has_ktls():
            return test(env)
        said = in_the_emulator(env)
        found = re.search(rf"^test_tls_kernel\.{test.__name__} +(\w+)(?:: (.*))?", said, re.MULTILINE)
        verdict, words = found.groups() if found else (None, f"it did not run: {said[-2000:]}")
        if verdict == "skip":
            raise Skip(words)
        assert verdict == "ok", words
    return run


def with_each_cipher(env, target, suites, **how):
    """A client with each."""
    for version, cipher in suites:
        tls = env.tls()
        tls.minimum_version = tls.maximum_version = VERSIONS[version]
        if version == "TLSv1.2":
            tls.set_ciphers(cipher)
        else:  # Python cannot choose those of TLS 1.3
            target.pooler.write(client_tls13_ciphers=cipher)
            target.pooler.reload()
        client = encrypted(env, target, tls, application_name=cipher, **how)
        equal(client.sock.cipher()[:2], (cipher, version))
        yield client


def encrypted(env, target, tls=None, **how):
    return env.connect(target, tls=tls or env.tls(), hostname="localhost", timeout=PATIENCE_SECONDS, **how)


def all_kinds(client):
    """Large results and COPY both ways, and messages of any size."""
    for size in (1, 8191, 8192, 8193, 16384, 100_000, 3_000_000):
        equal(client.value(f"select repeat('x', {size})"), "x" * size, f"{size} bytes")
        equal(client.value(f"select length('{'y' * size}')"), str(size), f"{size} bytes of a query")
    client.execute("create temporary table copied (n int, t text)")
    client.send(m.query("copy copied from stdin"))
    client.collect(until="G")
    rows = b"".join(b"%d\t%s\n" % (n, b"z" * 500) for n in range(ROWS))
    for at in range(0, len(rows), 50_000):
        client.send(m.copy_data(rows[at:at + 50_000]))
    client.send(m.COPY_DONE)
    equal(client.collect().tags, [f"COPY {ROWS}"])
    equal(b"".join(client.execute("copy (select * from copied order by n) to stdout").copied), rows)
    client.execute("drop table copied")


def without_warnings(pooler):
    # (That it runs as root, in a directory that others may read, is said at each start.)
    said = [line for line in pooler.text().splitlines() if re.search("ERROR|WARN", line) and "hawser::serve: " not in line]
    equal(said, [], "warnings and errors in the log")


@kernels_own
def test_clients_in_tls_go_over_to_the_new_process_with_each_cipher(env):
    with env.pooler_with() as target:
        clients = list(with_each_cipher(env, target, SUITES))
        for client in clients:
            client.execute("set work_mem to '3MB'")
        plain = env.connect(target)
        before = tls_column(target)
        old = take_over(target.pooler)
        with reaped(old):
            ended(target.pooler, old, PATIENCE_SECONDS)
        for client in clients:
            equal(client.value("show work_mem"), "3MB")
            all_kinds(client)
        equal(plain.value("select 1"), "1")
        equal(tls_column(target), before, "what SHOW CLIENTS says of TLS")
        # The kernel has them from the beginning here.
        old = take_over(target.pooler)
        with reaped(old):
            ended(target.pooler, old, PATIENCE_SECONDS)
        for client in clients:
            equal(client.value("show work_mem"), "3MB")
        ends(target, clients)


def tls_column(target):
    return sorted((row["application_name"], row["tls"]) for row in target.pooler.show("CLIENTS") if row["database"] == "app")


def ends(target, clients):
    """By Terminate and close_notify, by close_notify alone, by an end without either, and by the pooler."""
    count = lambda: len([row for row in target.pooler.show("CLIENTS") if row["database"] == "app" and row["tls"]])
    left = count()
    for client in clients[:2]:
        if client is clients[0]:
            client.send(m.TERMINATE)
        with contextlib.suppress(OSError):
            client.sock.unwrap()
        client.sock.close()
        left -= 1
        until(lambda: count() == left, "that it has left", PATIENCE_SECONDS)
    clients[2].sock.close()
    left -= 1
    until(lambda: count() == left, "that it has left", PATIENCE_SECONDS)
    without_warnings(target.pooler)
    clients[3].sock.suppress_ragged_eofs = False
    number = next(row["id"] for row in target.pooler.show("CLIENTS") if row["application_name"] == SUITES[3][1])
    with target.pooler.admin() as console:
        console.execute(f"KILL_CLIENT {number}")
    said = clients[3].collect(until="E")
    equal(said.sqlstate, "57P01")
    equal(clients[3].sock.recv(1), b"", "a close_notify, not an end that may be an attack")


@kernels_own
def test_clients_in_tls_at_work_go_over_without_an_error(env):
    with env.pooler_with(pool_size=3) as target:
        stop, failures, counts = threading.Event(), [], []

        def work(number):
            try:
                with encrypted(env, target) as client:
                    client.extended("select $1::int + 1", [str(number)], name="named")
                    done = 0
                    while not stop.is_set():
                        equal(client.exchange(m.bind("named", values=[str(done)]), m.execute(), m.SYNC).value, str(done + 1))
                        done += 1
                    counts.append(done)
            except Exception as error:  # handed to the test
                failures.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for _ in range(2):
            old = take_over(target.pooler)
            with reaped(old):
                ended(target.pooler, old, PATIENCE_SECONDS)
        stop.set()
        for thread in threads:
            thread.join(PATIENCE_SECONDS)
        equal(failures, [])
        equal(len(counts), 6, f"clients that worked to the end: {counts}")
        without_warnings(target.pooler)


@kernels_own
def test_clients_in_tls_go_inside(env):
    with inside(env) as target:
        clients = [*with_each_cipher(env, target, SUITES[:3], database="room"), encrypted(env, target, database="room")]
        plain = connect(env, target)
        goes_in(env, target, *clients, plain)
        for client in clients:
            for size in (1, 8192, 8193, 100_000, 1_000_000):
                equal(client.value(f"select repeat('x', {size})"), "x" * size)
            client.execute("begin")
            client.execute(f"insert into counts values ({100 + clients.index(client)}, 1)")
            client.execute("commit")
        equal(states(target).count("inside"), len(clients) + 1, "clients that are still inside")
        all_kinds(clients[0])  # COPY and temporary tables do not run there
        goes_in(env, target, *clients, plain)
        # One ends in a transaction, the others at rest, with a close_notify and nothing before it.
        clients[1].execute("begin")
        clients[1].execute("update counts set n = 7 where id = 1")
        for client in clients[1:]:
            with contextlib.suppress(OSError):
                client.sock.unwrap()
            client.sock.close()
        until(lambda: len(states(target)) == 2, "that all others have left", PATIENCE_SECONDS)
        equal(plain.value("select n from counts where id = 1"), "0")
        old = take_over(target.pooler)
        with reaped(old):
            ended(target.pooler, old, PATIENCE_SECONDS)
        equal((clients[0].value("select 1"), plain.value("select 2")), ("1", "2"))
        goes_in(env, target, clients[0], plain)


def change_keys(sock):
    """A KeyUpdate, which Python does not give: by OpenSSL's own function, on the SSL that its object has."""
    library = ctypes.CDLL(ssl._ssl.__file__)
    handle = ctypes.c_void_p.from_address(id(sock._sslobj) + 3 * ctypes.sizeof(ctypes.c_void_p))
    assert library.SSL_key_update(handle, 0) == 1
    assert library.SSL_do_handshake(handle) == 1


@kernels_own
def test_a_client_that_changes_its_keys_is_served_before_and_disconnected_after_it_has_moved(env):
    with env.pooler_with() as target:
        client, other = encrypted(env, target), encrypted(env, target)
        change_keys(client.sock)
        equal(client.value("select 1"), "1")
        old = take_over(target.pooler)
        with reaped(old):
            ended(target.pooler, old, PATIENCE_SECONDS)
        equal((client.value("select 2"), other.value("select 3")), ("2", "3"))
        change_keys(client.sock)
        assert client.is_closed(PATIENCE_SECONDS), "it goes on with keys that nobody knows"
        equal(other.value("select 4"), "4")
        without_warnings(target.pooler)
