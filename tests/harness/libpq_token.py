"""Logs in with libpq's own OAUTHBEARER, in a process of its own: libpq_token.py LIBRARY CONNINFO [TOKEN]

# Model   libpq asks the server where to get a token, checks the answer, and has a hook get it: the hook gives TOKEN.
          The last line is "user NAME", or libpq's error
"""

import ctypes
import sys

BEARER_TOKEN = 1
CONNECTION_OK = 0


class Request(ctypes.Structure):
    """PGoauthBearerRequest of libpq-fe.h"""

    _fields_ = [("openid_configuration", ctypes.c_char_p), ("scope", ctypes.c_char_p), ("poll", ctypes.c_void_p),
                ("cleanup", ctypes.c_void_p), ("token", ctypes.c_void_p), ("user", ctypes.c_void_p)]


def main(library, conninfo, token=""):
    libpq = ctypes.CDLL(library)
    libpq.PQconnectdb.restype = libpq.PQexec.restype = ctypes.c_void_p
    libpq.PQerrorMessage.restype = libpq.PQgetvalue.restype = ctypes.c_char_p
    given = ctypes.create_string_buffer(token.encode())

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(Request))
    def hook(kind, _, request):
        if kind != BEARER_TOKEN:
            return 0
        print("asked", request.contents.openid_configuration.decode(), "for", (request.contents.scope or b"").decode())
        request.contents.token = ctypes.addressof(given)
        return 1
    libpq.PQsetAuthDataHook(hook)
    connection = ctypes.c_void_p(libpq.PQconnectdb(conninfo.encode()))
    if libpq.PQstatus(connection) != CONNECTION_OK:
        print(libpq.PQerrorMessage(connection).decode().strip())
        return
    result = ctypes.c_void_p(libpq.PQexec(connection, b"select session_user"))
    print("user", libpq.PQgetvalue(result, 0, 0).decode())


main(*sys.argv[1:])
