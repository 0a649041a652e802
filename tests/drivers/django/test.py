"""Django on psycopg 3: what its database backend leans on in a session. Prints `ok NAME` or `FAIL NAME why`.

It sets the time zone at connect by set_config(), may SET ROLE, reads large results by cursors (WITH HOLD outside a
transaction), nests savepoints, and asks for `RETURNING` or sequences. Connections stay open from request to request.
"""

import os
import pathlib
import sys
import threading

sys.path.insert(0, str(pathlib.Path(__file__).parent / ".packages"))

import django
from django.conf import settings


def database(zone=None, **options):
    return {
        "ENGINE": "django.db.backends.postgresql", "NAME": os.environ["PGDATABASE"], "USER": os.environ["PGUSER"],
        "PASSWORD": os.environ["PGPASSWORD"], "HOST": os.environ["PGHOST"], "PORT": os.environ["PGPORT"],
        "CONN_MAX_AGE": None, "TIME_ZONE": zone, "OPTIONS": options,
    }


settings.configure(
    DATABASES={"default": database(), "berlin": database("Europe/Berlin"), "tokyo": database("Asia/Tokyo"),
               "binding": database(server_side_binding=True), "role": database(assume_role="helper_role"),
               "serializable": database(isolation_level=4)},
    USE_TZ=True, TIME_ZONE="UTC", INSTALLED_APPS=[], DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
)
django.setup()

from django.db import DatabaseError, connection, connections, models, transaction
from django.db.models import F, Sum


class Order(models.Model):
    name = models.CharField(max_length=40, unique=True)
    amount = models.IntegerField(default=0)
    made = models.DateTimeField(auto_now_add=True)

    class Meta:
        app_label = "shop"
        db_table = "django_order"


def equal(got, expected):
    assert got == expected, f"got {got!r}, expected {expected!r}"


def asked(alias, sql):
    with connections[alias].cursor() as cursor:
        cursor.execute(sql)
        return cursor.fetchone()


def schema():
    with connection.schema_editor() as editor:
        editor.create_model(Order)
    assert "django_order" in connection.introspection.table_names()


def rows():
    made = Order.objects.bulk_create([Order(name=f"order {n}", amount=n) for n in range(500)])
    assert all(order.pk for order in made)
    equal(Order.objects.create(name="one more").amount, 0)
    equal(Order.objects.filter(name__startswith="order 1").update(amount=F("amount") + 1000), 111)
    equal(Order.objects.aggregate(total=Sum("amount"))["total"], sum(range(500)) + 111_000)
    Order.objects.filter(amount__gte=1000).update(amount=F("amount") - 1000)


def time_zones_by_connection():
    for _ in range(10):
        for alias, zone in (("default", "UTC"), ("berlin", "Europe/Berlin"), ("tokyo", "Asia/Tokyo")):
            equal(asked(alias, "show timezone"), (zone,))
            equal(asked(alias, "select '2024-06-01 12:00+00'::timestamptz::text")[0][11:16],
                  {"UTC": "12:00", "Europe/Berlin": "14:00", "Asia/Tokyo": "21:00"}[zone])


def nested_savepoints():
    with transaction.atomic():
        Order.objects.create(name="outer")
        try:
            with transaction.atomic():
                Order.objects.create(name="inner")
                Order.objects.create(name="outer")
            raise AssertionError("a duplicate was taken")
        except DatabaseError:
            pass
        with transaction.atomic():
            Order.objects.create(name="inner")
    equal(Order.objects.filter(name__in=("outer", "inner")).count(), 2)
    try:
        with transaction.atomic():
            Order.objects.all().delete()
            raise KeyError
    except KeyError:
        equal(Order.objects.filter(name="outer").count(), 1)


def large_results():
    """iterator() is a cursor WITH HOLD in autocommit, an ordinary one in a transaction; two at once, and statements between."""
    first, second = Order.objects.order_by("pk").iterator(50), Order.objects.order_by("-pk").iterator(50)
    seen = [(next(first).pk, next(second).pk) for _ in range(200)]
    equal(Order.objects.filter(name="outer").count(), 1)
    equal(seen[0][0], Order.objects.order_by("pk").first().pk)
    first.close(), second.close()
    with transaction.atomic():
        equal(sum(1 for _ in Order.objects.iterator(30)), Order.objects.count())


def roles():
    for _ in range(5):
        equal(asked("role", "select current_user, session_user"), ("helper_role", os.environ["PGUSER"]))
        equal(asked("default", "select current_user, session_user"), (os.environ["PGUSER"], os.environ["PGUSER"]))


def isolation_level():
    for _ in range(3):
        with transaction.atomic(using="serializable"):
            equal(asked("serializable", "show transaction isolation level"), ("serializable",))
        with transaction.atomic():
            equal(asked("default", "show transaction isolation level"), ("read committed",))


def server_side_binding():
    for n in range(20):
        equal(Order.objects.using("binding").filter(name=f"order {n}").count(), 1)


def requests_in_threads():
    """Twelve threads, each with a connection of its own that only moves: more than there are server connections."""
    Order.objects.update_or_create(name="counter", defaults={"amount": 0})
    problems = []

    def request():
        try:
            for _ in range(20):
                with transaction.atomic():
                    order = Order.objects.select_for_update().get(name="counter")
                    order.amount += 1
                    order.save()
                equal(asked("default", "show timezone"), ("UTC",))
        except Exception as problem:  # told by the main thread
            problems.append(problem)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=request) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems, problems[0]
    equal(Order.objects.get(name="counter").amount, 240)


def schema_away():
    with connection.schema_editor() as editor:
        editor.delete_model(Order)


def main():
    failed = 0
    for test in (schema, rows, time_zones_by_connection, nested_savepoints, large_results, isolation_level, server_side_binding,
                 roles, requests_in_threads, schema_away):
        try:
            test()
            print(f"ok {test.__name__}", flush=True)
        except Exception as problem:  # each test's failure is a line, and the next one runs
            failed += 1
            print(f"FAIL {test.__name__} {type(problem).__name__}: {problem}".replace("\n", " "), flush=True)
        for alias in ("role", "binding", "serializable") if test is not schema_away else ():
            connections[alias].close()  # what pins shall not keep the others waiting
    return failed


if __name__ == "__main__":
    sys.exit(min(main(), 1))
