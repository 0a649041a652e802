//! Closes idle server connections.

use std::time::Duration;

use hawser_pooler::relay::{Backend, Socket, ToLoop};
use hawser_pooler::wire::build;

use crate::loops::{Loops, Pool};
use crate::socket::Conn;

/// Takes the idle backends for which `unwanted(backend, idle time)` holds out of the pool and closes
/// them. Returns how many.
pub fn close_idle(
    loops: &Loops,
    pool: &Pool,
    mut unwanted: impl FnMut(&Backend<Conn>, Duration) -> bool,
) -> usize {
    let now = loops.now();
    let taken = pool.lock().take_idle_if(now, |backend, idle| unwanted(backend, idle));
    let count = taken.len();
    for (home, mut backend) in taken {
        let place = backend.place();
        let socket = backend.socket_mut();
        // An idle backend's socket has room for five bytes; if not, the server sees the connection
        // end.
        let _ = socket.write(&build::TERMINATE);
        let _ = socket.flush();
        socket.shutdown();
        // The loop forgets the place; epoll forgets the socket when it is closed.
        loops.send(home, ToLoop::Departed(place));
        drop(backend);
    }
    count
}
