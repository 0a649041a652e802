"""Settings of Django's own test suite, and a runner that writes one JSON line for each test into $SUITE_RECORD."""

import json
import os
import unittest

from django.test.runner import DiscoverRunner

_PLACE = {
    "ENGINE": "django.db.backends.postgresql",
    "HOST": os.environ.get("PGHOST"),
    "PORT": os.environ.get("PGPORT"),
    "USER": os.environ.get("PGUSER"),
}
DATABASES = {"default": {**_PLACE, "NAME": "django"}, "other": {**_PLACE, "NAME": "django2"}}
SECRET_KEY = "of the tests"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
DEFAULT_AUTO_FIELD = "django.db.models.AutoField"
USE_TZ = False
TEST_RUNNER = "record_django.Runner"


def _say(**line):
    with open(os.environ["SUITE_RECORD"], "a") as out:
        out.write(json.dumps(line) + "\n")


class Result(unittest.TextTestResult):
    """A test with subtests has failed if one of them has."""

    def startTest(self, test):
        super().startTest(test)
        self._verdict, self._why = "passed", ""
        _say(test=test.id())

    def stopTest(self, test):
        super().stopTest(test)
        _say(test=test.id(), verdict=self._verdict, why=self._why)

    def _failed(self, test, error):
        self._verdict, self._why = "failed", self._exc_info_to_string(error, test)[-3000:]
        if not isinstance(test, unittest.TestCase):  # setUpClass, tearDownClass: no test began
            _say(test=test.id(), verdict="failed", why=self._why)

    def addError(self, test, error):
        super().addError(test, error)
        self._failed(test, error)

    def addFailure(self, test, error):
        super().addFailure(test, error)
        self._failed(test, error)

    def addSubTest(self, test, subtest, error):
        super().addSubTest(test, subtest, error)
        if error:
            self._failed(test, error)

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self._verdict = "skipped"

    def addUnexpectedSuccess(self, test):
        super().addUnexpectedSuccess(test)
        self._verdict = "failed"


class Runner(DiscoverRunner):
    def get_resultclass(self):
        return Result

    # Databases made and dropped: what a user of Django sees first.
    def setup_databases(self, **options):
        return self._step("setup_databases", super().setup_databases, **options)

    def teardown_databases(self, old_config, **options):
        return self._step("teardown_databases", super().teardown_databases, old_config, **options)

    @staticmethod
    def _step(name, step, *arguments, **options):
        _say(test=name)
        try:
            done = step(*arguments, **options)
        except BaseException as error:
            _say(test=name, verdict="failed", why=repr(error))
            raise
        _say(test=name, verdict="passed", why="")
        return done
