"""`stateful_functions`: what a function keeps in variables of its language stays with its client, and nobody finds it."""

import subprocess

from harness.pooler import binary
from harness.suite import create_perl, equal

SAME_FOR_ALL_SERVERS = True

COUNTS = "create or replace function counts() returns int language plperl as $$ return ++$_SHARED{calls} $$"


def prepared(env):
    with env.server() as superuser:
        create_perl(superuser)
        superuser.execute(COUNTS)


def test_each_client_has_its_own_to_its_end(env):
    prepared(env)
    with env.pooler_with(stateful_functions=["public.counts"], pool_size=2) as target:
        one, two = target.connect(), target.connect()
        for calls in (1, 2, 3):
            equal(one.value("select counts()"), str(calls))
            equal(two.extended("select Counts() + $1", ("0",)).rows, [(str(calls),)])
        one.close()
        two.close()
        with target.connect() as three:
            equal(three.value("select counts()"), "1")


def test_check_lists_those_that_are_not_named(env):
    prepared(env)
    secret = env.target.secrets["app"]
    entry = (f'\n[[database]]\nname = "looked"\ndbname = "app"\nservers = ["{env.cluster.address}"]\nuser = "app"\n'
             f'password = "{secret}"\n')
    for names, listed in (([], True), (["counts"], False)):
        with env.pooler_with(append=entry, stateful_functions=names) as target:
            done = subprocess.run([binary(), "check", "-c", str(target.pooler.config)], capture_output=True, text=True, timeout=20)
            equal(done.returncode, 0, done.stdout)
            equal("unless `stateful_functions` names them: public.counts" in done.stdout, listed, done.stdout)


def test_what_is_no_name_is_refused(env):
    done = subprocess.run([binary(), "check", "-c", "/dev/stdin"], input='[pool]\nstateful_functions = ["f()", "g"]\n',
                          capture_output=True, text=True, timeout=20)
    equal(done.returncode == 0, False)
    assert "`f()` is not the name of a function" in done.stdout + done.stderr, done.stdout + done.stderr
