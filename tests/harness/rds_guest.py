"""In a kernel that is tested: opens RDS sockets, and does with them what comes by TCP, a line of JSON each.

    rds_guest.py ADDRESS
"""

import base64
import errno
import json
import select
import socket
import subprocess
import sys
import time

CONTROL_PORT = 7001
SO_SNDBUFFORCE, SO_RCVBUFFORCE = 32, 33


def operate(address, sockets, ask):
    op, port = ask["op"], ask.get("port")
    if op == "run":
        done = subprocess.run(ask["command"], shell=True, capture_output=True, text=True)
        return [done.returncode, done.stdout + done.stderr]
    if op == "bind":
        made = socket.socket(socket.AF_RDS, socket.SOCK_SEQPACKET, 0)
        made.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, ask["buffer"])
        made.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, ask["buffer"])
        made.bind((address, port))
        sockets[made.getsockname()[1]] = made
        return made.getsockname()[1]
    if op == "close":
        sockets.pop(port).close()
        return 0
    if op == "exchange":
        pairs = [(sockets[port], tuple(to)) for port, to in ask["pairs"]]
        return exchange(pairs, ask["count"], ask["size"], ask["seconds"])
    one = sockets[port]
    one.settimeout(ask["seconds"])
    if op == "send":
        return one.sendto(base64.b64decode(ask["body"]), tuple(ask["to"]))
    if op == "receive":
        body, who = one.recvfrom(1 << 21)
        return [*who, base64.b64encode(body).decode()]
    # Numbered messages, sent or received: as many as can be within the time for each, and which they were.
    seen = []
    while len(seen) < ask["count"]:
        end = time.monotonic() + ask["seconds"]
        try:
            if op == "send numbers":
                send_waiting(one, len(seen).to_bytes(4, "big") + bytes(ask["size"]), tuple(ask["to"]), end)
                seen.append(len(seen))
            else:
                seen.append(int.from_bytes(one.recv(1 << 21)[:4], "big"))
        except TimeoutError:
            break
    return seen


def send_waiting(one, body, to, end):
    """A socket with a timeout does not block in the kernel, which says ENOBUFS then while the other port is congested."""
    while True:
        try:
            return one.sendto(body, to)
        except OSError as error:
            if error.errno != errno.ENOBUFS:
                raise
            if time.monotonic() > end:
                raise TimeoutError from error
            time.sleep(0.005)


def exchange(pairs, count, size, quiet):
    """Numbered messages from each socket to its partner, and the numbers that come to it, until none has for some seconds."""
    sent, seen, last = [0] * len(pairs), [[] for _ in pairs], time.monotonic()
    for one, _ in pairs:
        one.setblocking(False)
    while time.monotonic() - last < quiet:
        busy = False
        for at, (one, to) in enumerate(pairs):
            try:
                while True:
                    seen[at].append(int.from_bytes(one.recv(1 << 21)[:4], "big"))
                    busy = True
            except BlockingIOError:
                pass
            if sent[at] < count:
                try:
                    one.sendto(sent[at].to_bytes(4, "big") + bytes(size), to)
                    sent[at] += 1
                    busy = True
                except OSError as error:
                    if error.errno not in (errno.ENOBUFS, errno.EAGAIN):
                        raise
        if busy:
            last = time.monotonic()
        else:
            select.select([one for one, _ in pairs], [], [], 0.01)
    return seen


def main(address):
    listener = socket.create_server((address, CONTROL_PORT))
    sockets = {}
    print("the kernel waits", flush=True)
    while True:
        control = listener.accept()[0]
        for line in control.makefile("rb"):
            try:
                answer = {"ok": operate(address, sockets, json.loads(line))}
            except OSError as error:
                answer = {"errno": error.errno, "error": repr(error)}
            control.sendall(json.dumps(answer).encode() + b"\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
