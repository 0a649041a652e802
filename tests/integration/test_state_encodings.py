"""Values that are not ASCII stay the characters that they are, whatever client_encoding they were set under, or are brought under.

One backend: each client's settings are brought anew for each of its transactions.
"""

from harness import messages as m
from harness.suite import Skip, equal

SETTINGS = {"pool_size": 1}

# Of each of PostgreSQL's client encodings some text; of those in which a character may end with the byte of a backslash
# (or of a quote's neighbour), such characters.
ENCODINGS = {
    "UTF8": "é日\\'ソ",
    "SQL_ASCII": "é日\\'",
    "BIG5": "功許\\'",
    "EUC_CN": "日本\\'",
    "EUC_JIS_2004": "ソ日\\'",
    "EUC_JP": "ソ日\\'",
    "EUC_KR": "한국\\'",
    "EUC_TW": "功許\\'",
    "GB18030": "昞俓\\'",
    "GBK": "昞俓\\'",
    "ISO_8859_5": "Дя\\'",
    "ISO_8859_6": "شم\\'",
    "ISO_8859_7": "αΩ\\'",
    "ISO_8859_8": "אב\\'",
    "JOHAB": "한국\\'",
    "KOI8R": "Дя\\'",
    "KOI8U": "Дї\\'",
    "LATIN1": "éÿ\\'",
    "LATIN2": "őž\\'",
    "LATIN3": "ħĝ\\'",
    "LATIN4": "ąķ\\'",
    "LATIN5": "şğ\\'",
    "LATIN6": "ąđ\\'",
    "LATIN7": "ąž\\'",
    "LATIN8": "ŵÿ\\'",
    "LATIN9": "€é\\'",
    "LATIN10": "țș\\'",
    "SHIFT_JIS_2004": "ソ表\\'",
    "SJIS": "ソ表\\'",
    "UHC": "뾙뻣한\\'",
    "WIN1250": "őž\\'",
    "WIN1251": "Дя\\'",
    "WIN1252": "é€\\'",
    "WIN1253": "αΩ\\'",
    "WIN1254": "şğ\\'",
    "WIN1255": "אב\\'",
    "WIN1256": "شم\\'",
    "WIN1257": "ąž\\'",
    "WIN1258": "đơ\\'",
    "WIN866": "Дя\\'",
    "WIN874": "กข\\'",
}
STORED = "select encode(convert_to(current_setting('a.b'), 'UTF8'), 'hex'), current_setting('app.who', true)"


def hexadecimal(text):
    return text.encode().hex()


def raw(client, sql):
    """The bytes of the only value, as they come."""
    result = client.exchange(m.query(sql))
    equal(result.errors, [])
    (row,) = [message for message in result.messages if message.kind == "D"]
    return row.body[6:]


def encoded(server, text, encoding):
    """Characters as a client of this encoding sends them."""
    if encoding in ("UTF8", "SQL_ASCII"):
        return text.encode()
    return bytes.fromhex(server.value(f"select encode(convert_to(convert_from('\\x{hexadecimal(text)}', 'UTF8'), '{encoding}'), 'hex')"))


def test_every_client_encoding_is_here(env):
    known = env.server().rows("select pg_encoding_to_char(n) from generate_series(0, 60) n where pg_encoding_to_char(n) <> ''")
    # To one of them there is no conversion from UTF8.
    equal(sorted(name for (name,) in known), sorted([*ENCODINGS, "MULE_INTERNAL"]))


def test_a_value_set_as_utf8_under_each_encoding(env):
    other = env.connect(application_name="other")
    for encoding, text in ENCODINGS.items():
        client = env.connect()
        client.execute("set app.who to 'nobody'")
        client.execute("set a.b to E'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'")
        client.execute(f"set client_encoding to '{encoding}'; set backslash_quote to on; set standard_conforming_strings to off")
        sent = encoded(env.server(), text, encoding)
        for _ in range(2):
            other.value("select 1")
            equal(raw(client, "select current_setting('a.b')"), sent, encoding)
            other.value("select 1")
            equal(client.rows(STORED), [(hexadecimal(text), "nobody")], encoding)
        client.execute("set client_encoding to 'UTF8'")
        other.value("select 1")
        equal(client.value("select current_setting('a.b')"), text, encoding)
        client.close()


def test_a_value_set_under_each_encoding(env):
    other = env.connect(application_name="other")
    for encoding, text in ENCODINGS.items():
        if encoding == "JOHAB":
            text = "갸갹\\'"  # the server takes few of its own (`pg_johab_mblen`)
        client = env.connect(client_encoding=encoding)
        sent = encoded(env.server(), text, encoding)
        result = client.exchange(m.parse("select set_config('a.b', $1, false)"), m.bind(values=[sent], formats=[0]), m.execute(), m.SYNC)
        equal(result.errors, [], encoding)
        for _ in range(2):
            other.value("select 1")
            equal(raw(client, "select current_setting('a.b')"), sent, encoding)
        client.execute("set client_encoding to 'UTF8'")
        other.value("select 1")
        equal(client.rows(STORED), [(hexadecimal(text), None)], encoding)
        client.execute("set client_encoding to 'SQL_ASCII'")
        other.value("select 1")
        equal(client.rows(STORED), [(hexadecimal(text), None)], encoding)
        client.close()


def test_no_value_is_code_under_another_encoding(env):
    """A character of SJIS ends with the byte of a backslash: with backslash_quote it would hide the quote behind it."""
    other = env.connect()
    for encoding in ("SJIS", "BIG5", "GBK", "UHC", "GB18030", "JOHAB", "SHIFT_JIS_2004"):
        for first in ("é", "ソ", "ァ", "ｿ", "ﾄ", "Ã"):
            client = env.connect()
            client.execute("set app.who to 'nobody'; set standard_conforming_strings to off; set backslash_quote to on")
            client.execute(f"set a.b to E'{first}\\\\'")
            client.execute("set a.c to '; SET app.who TO alice;--'")
            client.execute(f"set client_encoding to '{encoding}'")
            for _ in range(2):
                other.value("select 1")
                equal(client.rows(STORED), [(hexadecimal(f"{first}\\"), "nobody")], encoding)
            client.close()


def test_start_values_are_the_bytes_that_came(env):
    """A server takes those of the startup packet as they are, whatever client_encoding stands beside them."""
    if env.cluster.version >= 18:
        raise Skip("PostgreSQL 18 reports search_path in the client's encoding: such a login fails there by itself (22P05)")
    other = env.connect()
    for encoding in ("UTF8", "LATIN1", "SJIS"):
        client = env.connect(client_encoding=encoding, options="-c a.b=é\\\\'", search_path='"größe", public')
        for _ in range(2):
            other.value("select 1")
            equal(client.rows(STORED), [(hexadecimal("é\\'"), None)], encoding)
            equal(client.value("select encode(convert_to(current_setting('search_path'), 'UTF8'), 'hex')"),
                  hexadecimal('"größe", public'), encoding)
        client.execute("set a.b to 'x'; set search_path to pg_catalog")
        client.execute("reset a.b; reset search_path")
        client.execute("select set_config('a.b', null, false) is null")
        other.value("select 1")
        equal(client.rows(STORED), [(hexadecimal("é\\'"), None)], encoding)
        equal(client.value("select encode(convert_to(current_setting('search_path'), 'UTF8'), 'hex')"),
              hexadecimal('"größe", public'), encoding)
        client.close()


def test_identifiers_beyond_ascii(env):
    server = env.server()
    server.execute('drop role if exists "größe"; create role "größe"; grant "größe" to app; drop schema if exists "größe"; create '
                   'schema "größe"')
    other = env.connect()
    try:
        for encoding in ("UTF8", "LATIN1", "GB18030"):
            client = env.connect()
            client.execute('set search_path to "größe", "it\'s""\\", public; set role to "größe"')
            client.execute(f"set client_encoding to '{encoding}'")
            for _ in range(2):
                other.value("select 1")
                equal(client.rows("select encode(convert_to(current_setting('search_path'), 'UTF8'), 'hex'), "
                                  "encode(convert_to(current_user, 'UTF8'), 'hex')"),
                      [(hexadecimal('"größe", "it\'s""\\", public'), hexadecimal("größe"))], encoding)
            client.close()
    finally:
        server.execute('drop schema "größe"; drop role "größe"')


def test_a_statement_prepared_anew_puts_back_what_was_in_force(env):
    client, other = env.connect(), env.connect()
    client.execute("set a.b to 'é日'")
    client.execute("set client_encoding to 'EUC_JP'")
    client.execute("set a.b to 'x'")
    equal(client.exchange(m.parse("select current_setting('a.b'), '01/02/2024'::date", "p"), m.SYNC).kinds, "1Z")
    client.exchange(m.parse("select set_config('a.b', $1, false)"), m.bind(values=["日".encode("euc_jp")], formats=[0]),
                    m.execute(), m.SYNC)
    client.execute("set datestyle to 'SQL, DMY'")
    for _ in range(2):
        other.execute("set datestyle to 'German'")
        other.value("select 1")
        client.exchange(m.query("begin"), m.bind("p") + m.execute() + m.SYNC, m.query("commit"))
        equal(client.rows(STORED), [(hexadecimal("日"), None)])


def test_databases_of_other_encodings(env):
    server = env.server("postgres")
    for number, (database, encodings) in enumerate({"SQL_ASCII": ("SQL_ASCII", "UTF8", "LATIN1"), "LATIN1": ("LATIN1", "UTF8")}.items()):
        name = f"encoded{number}"
        server.execute(f"drop database if exists {name}")
        server.execute(f"create database {name} owner app encoding '{database}' template template0 lc_collate 'C' lc_ctype 'C'")
        other = env.connect(database=name)
        for encoding in encodings:
            client = env.connect(database=name)
            client.execute(f"set client_encoding to '{encoding}'")
            sent = "é\\'".encode("latin1" if encoding == "LATIN1" else "utf-8")
            client.exchange(m.parse("select set_config('a.b', $1, false)"), m.bind(values=[sent], formats=[0]), m.execute(), m.SYNC)
            for again in (encoding, "SQL_ASCII"):
                client.execute(f"set client_encoding to '{again}'")
                stored = raw(client, "select current_setting('a.b')")
                for _ in range(2):
                    other.value("select 1")
                    equal(raw(client, "select current_setting('a.b')"), stored, f"{database} {encoding} {again}")
            if database != "SQL_ASCII":
                client.execute("set client_encoding to 'UTF8'")
                other.value("select 1")
                equal(client.value("select current_setting('a.b')"), "é\\'", f"{database} {encoding}")
            client.close()
        other.close()
        server.execute(f"drop database {name} with (force)")
