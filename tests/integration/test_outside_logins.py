"""Logins that somebody else judges: LDAP servers, and issuers of OAuth tokens."""

import ctypes
import json
import os
import pathlib
import subprocess
import sys
import time

from harness import messages as m
from harness.issuer import Issuer, Pages
from harness.ldap import LdapServer
from harness.postgres import SECRETS
from harness.suite import Background, Skip, crowd, equal, limit, pooler_only, until
from harness.wire import Connection, ServerError

SAME_FOR_ALL_SERVERS = True

BASE = "dc=example,dc=net"
PASSWORD = "an LDAP password"
ENTRIES = {
    f"uid=app,ou=people,{BASE}": (PASSWORD, {"uid": "app", "mail": "app@example.net", "objectClass": "person"}),
    f"uid=app2,ou=people,{BASE}": (PASSWORD, {"uid": "app2", "objectClass": "robot"}),
    f"cn=twice,ou=people,{BASE}": (PASSWORD, {"uid": "app3"}),
    f"cn=again,ou=people,{BASE}": (PASSWORD, {"uid": "app3"}),
    f"cn=search,{BASE}": ("search's own", {}),
}


def by_ldap(env, server, options, **settings):
    """A pooler whose clients are judged by `server`, and whose own log in to PostgreSQL is by trust."""
    rule = f"host app all all ldap ldapserver=127.0.0.1 ldapport={server.port} {options}\n"
    return env.pooler_with(hba=rule + "host hawser admin all trust\n", users_file=None, **settings)


def refused(target, user="app", secret=PASSWORD, message=None):
    try:
        with target.connect(user, secret=secret):
            pass
    except ServerError as error:
        equal((error.sqlstate, error.fields["M"]), ("28000", message or f'LDAP authentication failed for user "{user}"'))
        return
    raise AssertionError(f"{user} has logged in")


@pooler_only
def test_ldap_by_a_name_that_is_put_together(env):
    with LdapServer(ENTRIES) as server, by_ldap(env, server, f'ldapprefix="uid=" ldapsuffix=",ou=people,{BASE}"') as target:
        client = target.connect("app", secret=PASSWORD)
        equal(client.value("select session_user"), "app")
        refused(target, secret="wrong")
        refused(target, user="app3")
        equal(server.asked[0], ("bind", f"uid=app,ou=people,{BASE}", PASSWORD))
        asked = len(server.asked)
        # To LDAP an empty password is an anonymous bind, which succeeds: it is not asked at all.
        raw = env.raw(target)
        raw.send(m.startup({"user": "app", "database": "app"}))
        equal(raw.receive().body[:4], b"\0\0\0\3")
        raw.send(m.password(""))
        equal(raw.collect().errors[0]["M"], "empty password returned by client")
        equal(len(server.asked), asked)
        assert "LDAP login failed" in target.pooler.text(), target.pooler.text()
        assert PASSWORD not in target.pooler.text()


@pooler_only
def test_ldap_by_a_search(env):
    options = f'ldapbasedn="ou=people,{BASE}" ldapbinddn="cn=search,{BASE}" ldapbindpasswd="search\'s own"'
    with LdapServer(ENTRIES, only_bound=True) as server:
        with by_ldap(env, server, options) as target:
            equal(target.connect("app", secret=PASSWORD).value("select session_user"), "app")
            equal([what[:2] for what in server.asked], [("bind", f"cn=search,{BASE}"), ("search", f"ou=people,{BASE}"),
                                                        ("bind", f"uid=app,ou=people,{BASE}")])
            refused(target, secret="wrong")
            refused(target, user="nobody_at_all")
            refused(target, user="app3")  # two entries
            before = len(server.asked)
            refused(target, user="a*")
            equal(len(server.asked), before)
            for words in ("does not exist", "is not unique", "invalid character in user name"):
                assert words in target.pooler.text(), words
        with by_ldap(env, server, options + ' ldapsearchfilter="(&(objectClass=person)(|(uid=$username)(mail=$username)))"') as target:
            equal(target.connect("app", secret=PASSWORD).value("select 1"), "1")
            refused(target, user="app2")
        with by_ldap(env, server, options.replace("own", "wrong")) as target:
            refused(target)
            assert "initial LDAP bind" in target.pooler.text(), target.pooler.text()


@pooler_only
def test_ldap_by_a_url(env):
    with LdapServer(ENTRIES) as server:
        rule = f'host all all all ldap ldapurl="ldap://127.0.0.1:{server.port}/ou=people,{BASE}?uid?sub"\n'
        with env.pooler_with(hba=rule, users_file=None) as target:
            equal(target.connect("app", secret=PASSWORD).value("select 1"), "1")
            refused(target, secret="wrong")


@pooler_only
def test_ldap_over_tls(env):
    """ldaps and StartTLS, with a certificate that is verified: by auth_ca_file, for the name that was asked for."""
    certificates = env.cluster.certificates
    trusted = {"auth_ca_file": certificates.path("ca.crt")}
    simple = f'ldapprefix="uid=" ldapsuffix=",ou=people,{BASE}"'
    with LdapServer(ENTRIES, certificates, tls=True) as server:
        options = f"{simple} ldapscheme=ldaps"
        with by_ldap(env, server, options, **trusted) as target:
            equal(target.connect("app", secret=PASSWORD).value("select 1"), "1")
            refused(target, secret="wrong")
        asked = len(server.asked)
        with by_ldap(env, server, options, auth_ca_file=certificates.path("other-ca.crt")) as target:
            refused(target)
        equal(len(server.asked), asked)
    with LdapServer(ENTRIES, certificates) as server, by_ldap(env, server, f"{simple} ldaptls=1", **trusted) as target:
        equal(target.connect("app", secret=PASSWORD).value("select 1"), "1")
        equal([what[0] for what in server.asked], ["extended", "bind"])


@pooler_only
@limit(60)
def test_an_ldap_server_that_is_away_or_silent_delays_its_own_logins_alone(env):
    simple = 'ldapprefix="x"'
    with LdapServer(ENTRIES, silent=True) as silent, LdapServer(ENTRIES) as server:
        rules = (f"host app app2 all ldap ldapserver=127.0.0.1 ldapport={silent.port} {simple}\n"
                 f"host app app3 all ldap ldapserver=127.0.0.1 ldapport=1 {simple}\n"
                 f'host app app all ldap ldapserver=127.0.0.1 ldapport={server.port} ldapprefix="uid=" ldapsuffix=",ou=people,{BASE}"\n')
        with env.pooler_with(hba=rules, users_file=None, server_connect_timeout="2s") as target:
            refused(target, user="app3")
            client = target.connect("app", secret=PASSWORD)

            def waits(_):
                began = time.monotonic()
                refused(target, user="app2")
                return time.monotonic() - began
            waiting = Background(crowd, 20, waits)
            time.sleep(0.5)  # all of them wait
            began = time.monotonic()
            client.execute("select 1")
            equal(target.connect("app", secret=PASSWORD).value("select 1"), "1")
            took = time.monotonic() - began
            assert took < 1.5, f"beside 20 that wait for a silent LDAP server, a login took {took:.1f} s"
            waited = waiting.join(30)
            assert min(waited) > 1.5 and max(waited) < 8, waited
            assert "no answer within 2 s" in target.pooler.text(), target.pooler.text()


@pooler_only
def test_the_ldap_password_is_what_the_server_is_logged_in_to_with(env):
    """The server asks for the same password as the LDAP server: a client logs in to both with it."""
    entries = {f"uid=app,{BASE}": (SECRETS["app"], {})}
    with LdapServer(entries) as server:
        options = f'ldapprefix="uid=" ldapsuffix=",{BASE}"'
        with by_ldap(env, server, options, servers=[f"127.0.0.1:{env.cluster.port}"]) as target:
            equal(target.connect("app").value("select session_user"), "app")


# OAUTHBEARER

ISSUER = "https://issuer.example"
SEPARATOR = b"\x01"


def bearer(token):
    value = f"Bearer {token}" if token else ""
    return b"n,," + SEPARATOR + b"auth=" + value.encode() + SEPARATOR + SEPARATOR


def shows(target, first, user="app", last=SEPARATOR):
    """Logs in with OAUTHBEARER: (the connection, None), or (the error's status, the error's fields)."""
    connection: Connection = target.open()
    connection.send(m.startup({"user": user, "database": "app"}))
    offered = connection.receive()
    equal(offered.body, b"\0\0\0\x0aOAUTHBEARER\0\0")
    connection.send(m.sasl_initial("OAUTHBEARER", first))
    answer = connection.receive()
    if answer.kind == "E":
        return None, answer.fields()
    if answer.body[:4] == b"\0\0\0\0":
        connection.login()
        return connection, None
    equal(answer.body[:4], b"\0\0\0\x0b")
    connection.send(m.sasl_response(last))
    error = connection.receive()
    equal(error.kind, "E")
    return json.loads(answer.body[4:]), error.fields()


def by_token(env, options, **more):
    rule = f'host app all all oauth issuer="{ISSUER}" scope="openid pg" audience=db {options}\n'
    return env.pooler_with(hba=rule + "host hawser admin all trust\n", users_file=None, **more)


def own_directory(env, name):
    path = f"{env.directory}/{name}"
    os.makedirs(path, exist_ok=True)
    return path


@pooler_only
def test_a_token_of_the_issuer_opens_its_users_session(env):
    directory = own_directory(env, "issuer-file")
    issuer, strange = Issuer(directory), Issuer(directory, "strange")
    keys = f"{directory}/keys.json"
    with open(keys, "w") as file:
        json.dump({"keys": [issuer.jwk]}, file)
    with by_token(env, f"jwks={keys}") as target:
        client, error = shows(target, bearer(issuer.token(ISSUER, sub="app")))
        equal((error, client.value("select session_user")), (None, "app"))
        document = {"status": "invalid_token", "openid-configuration": f"{ISSUER}/.well-known/openid-configuration", "scope": "openid pg"}
        wrong = {
            "no token": bearer(None),
            "another user's": bearer(issuer.token(ISSUER, sub="app2")),
            "expired": bearer(issuer.token(ISSUER, sub="app", exp=time.time() - 60)),
            "another issuer": bearer(issuer.token("https://evil.example", sub="app")),
            "another audience": bearer(issuer.token(ISSUER, sub="app", aud="mail")),
            "another scope": bearer(issuer.token(ISSUER, sub="app", scope="openid")),
            "signed by a stranger": bearer(strange.token(ISSUER, {"kid": "one"}, sub="app")),
            "with a key that is not there": bearer(strange.token(ISSUER, sub="app")),
            "not signed": bearer(issuer.token(ISSUER, {"alg": "none"}, sub="app").rsplit(".", 1)[0] + "."),
            "no JWT": bearer("abc"),
        }
        for what, first in wrong.items():
            status, error = shows(target, first)
            equal((status, error["C"], error["M"]), (document, "28000", 'OAuth bearer authentication failed for user "app"'), what)
        log = target.pooler.text()
        for reason in ("no token", 'that of \\"app2\\"', "has expired", '\\"iss\\" is not', '\\"aud\\" is not', '\\"scope\\" is not',
                       "signature is not",
                       "has no key strange", "is no signed JWT"):
            assert reason in log or reason.replace("\\", "") in log, (reason, log)
        status, error = shows(target, b"p=tls-exporter,," + SEPARATOR)
        equal((error["C"], error["M"]), ("08P01", "malformed OAUTHBEARER message"))
        status, error = shows(target, bearer(None), last=b"x")
        equal((error["C"], error.get("D")), ("08P01", None))


@pooler_only
def test_a_token_may_be_as_long_as_it_is(env):
    directory = own_directory(env, "issuer-long")
    issuer = Issuer(directory)
    with open(f"{directory}/keys.json", "w") as file:
        json.dump({"keys": [issuer.jwk]}, file)
    with by_token(env, f"jwks={directory}/keys.json") as target:
        client, error = shows(target, bearer(issuer.token(ISSUER, sub="app", groups=["g" * 100] * 200)))
        equal((error, client.value("select 1")), (None, "1"))


@pooler_only
def test_names_in_tokens_are_mapped_as_pg_ident_says(env):
    directory = own_directory(env, "issuer-map")
    issuer = Issuer(directory)
    with open(f"{directory}/keys.json", "w") as file:
        json.dump({"keys": [issuer.jwk]}, file)
    with open(f"{directory}/pg_ident.conf", "w") as file:
        file.write(r"people /^(.*)@example\.net$ \1" + "\n")
    options = f"jwks={directory}/keys.json map=people claim=email"
    with by_token(env, options, ident_file=f"{directory}/pg_ident.conf") as target:
        client, error = shows(target, bearer(issuer.token(ISSUER, sub="7", email="app@example.net")))
        equal((error, client.value("select session_user")), (None, "app"))
        for email in ("app2@example.net", "app@evil.example", "app"):
            equal(shows(target, bearer(issuer.token(ISSUER, sub="app", email=email)))[1]["C"], "28000", email)


@pooler_only
@limit(60)
def test_keys_are_fetched_and_fetched_again_when_they_change(env):
    directory = own_directory(env, "issuer-pages")
    first, second = Issuer(directory), Issuer(directory, "two")
    with Pages() as pages:
        pages.documents["/keys"] = {"keys": [first.jwk]}
        pages.documents["/realm/.well-known/openid-configuration"] = {"issuer": f"{pages.url}/realm", "jwks_uri": f"{pages.url}/keys"}
        issuer = f"{pages.url}/realm"
        rule = f'host app all all oauth issuer="{issuer}" scope="openid pg" audience=db\n'
        with env.pooler_with(hba=rule, users_file=None) as target:
            for _ in range(5):
                client, error = shows(target, bearer(first.token(issuer, sub="app")))
                equal((error, client.value("select 1")), (None, "1"))
            equal(pages.fetched, ["/realm/.well-known/openid-configuration", "/keys"])
            pages.documents["/keys"] = {"keys": [second.jwk]}
            # A key that nobody knows is no reason to ask again at once: anybody can name one.
            for _ in range(5):
                equal(shows(target, bearer(second.token(issuer, sub="app")))[1]["C"], "28000")
            equal(len(pages.fetched), 2)
            until(lambda: shows(target, bearer(second.token(issuer, sub="app")))[1] is None, "the new key is known", seconds=20)
            equal(shows(target, bearer(first.token(issuer, sub="app")))[1]["C"], "28000")


@pooler_only
def test_without_the_issuers_keys_nobody_gets_in(env):
    directory = own_directory(env, "issuer-away")
    issuer = Issuer(directory)
    with by_token(env, "jwks=http://127.0.0.1:1/keys") as target:
        equal(shows(target, bearer(issuer.token(ISSUER, sub="app")))[1]["C"], "28000")
        assert "keys of an issuer" in target.pooler.text(), target.pooler.text()


def libpq_with_tokens(env):
    """libpq 18, of the server's own installation or the system's."""
    places = [env.cluster.bin.parent / "lib" / "libpq.so.5", "libpq.so.5"]
    for place in places:
        try:
            if hasattr(ctypes.CDLL(str(place)), "PQsetAuthDataHook"):
                return str(place)
        except OSError:
            continue
    raise Skip("no libpq 18 here, which is the first that speaks OAUTHBEARER")


@pooler_only
def test_libpq_logs_in_with_a_token(env):
    """It asks without a token first, and takes only the issuer that its user has named."""
    library = libpq_with_tokens(env)
    directory = own_directory(env, "issuer-libpq")
    issuer = Issuer(directory)
    with open(f"{directory}/keys.json", "w") as file:
        json.dump({"keys": [issuer.jwk]}, file)
    program = str(pathlib.Path(__file__).parents[1] / "harness" / "libpq_token.py")

    def run(target, token, named=ISSUER):
        conninfo = f"host={target.pooler.directory} port={target.port} user=app dbname=app oauth_issuer={named} oauth_client_id=x"
        done = subprocess.run([sys.executable, program, library, conninfo, token], capture_output=True, text=True, timeout=30)
        equal(done.returncode, 0, done.stderr)
        return done.stdout.splitlines()
    rule = f'local app all oauth issuer="{ISSUER}" scope="openid pg" audience=db jwks={directory}/keys.json\n'
    with env.pooler_with(hba=rule, users_file=None) as target:
        asked = f"asked {ISSUER}/.well-known/openid-configuration for openid pg"
        equal(run(target, issuer.token(ISSUER, sub="app")), [asked, "user app"])
        lines = run(target, issuer.token(ISSUER, sub="app2"))
        equal(lines[0], asked)
        assert 'OAuth bearer authentication failed for user "app"' in lines[-1], lines
        lines = run(target, issuer.token(ISSUER, sub="app"), named="https://other.example")
        assert not any(line.startswith(("asked", "user")) for line in lines) and "issuer" in lines[-1], lines
