//! What the engine requests from its host.

use std::io;

use crate::ids::{ClientId, LoopId, ServerAddressId, Slot};
use crate::relay::backend::PoolRef;
use crate::relay::client_info::CancelKey;
use crate::relay::inside::{BackFromInside, InsideSession};
use crate::relay::message;
use crate::relay::message::ToLoop;
use crate::relay::socket::{Socket, Token};
use crate::relay::succession::{Arrival, MovedClient};
use crate::wire::error::{ClientError, SqlState};

/// A cancel request to be sent to a server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CancelRequest {
    /// The index among the configured server addresses.
    pub server: ServerAddressId,
    /// Process id from BackendKeyData.
    pub process: u32,
    /// Key from BackendKeyData.
    pub key: Box<[u8]>,
    /// The loop that gets [`ToLoop::CancelDone`].
    pub reply_to: LoopId,
    /// The backend's place in that loop's table.
    pub backend: Slot,
}

/// What the engine requests from its host.
pub trait Host<S: Socket> {
    /// Watches a connection, edge-triggered, for everything. Readiness that exists already is
    /// reported. (That a server's connection takes bytes again need not be reported before
    /// [`crate::relay::Engine::watch_for_room`] has named it.)
    fn watch(&mut self, socket: &S, token: Token) -> io::Result<()>;
    /// Stops loop `home`'s watch on a connection.
    fn unwatch(&mut self, socket: &S, home: LoopId);
    /// Sends a message to a loop (also to this one).
    fn send(&mut self, to: LoopId, message: ToLoop<S>);
    /// Opens a backend for the pool. It comes as [`ToLoop::Opened`] to loop `home`, or
    /// [`ToLoop::OpenFailed`] does.
    fn open(&mut self, pool: &PoolRef<S>, home: LoopId);
    /// Opens a connection that listens for a pool's clients, outside of the pool's size. It comes
    /// as [`ToLoop::ListenerOpened`] to loop `home`, or [`ToLoop::ListenerFailed`] does.
    fn open_listener(&mut self, pool: &PoolRef<S>, home: LoopId) {
        let error =
            ClientError::error(SqlState::FEATURE_NOT_SUPPORTED, "LISTEN is not supported here");
        self.send(home, ToLoop::ListenerFailed { pool: pool.clone(), error });
    }
    /// Closes the idle connections to a database, on all servers of a pool, and opens none until
    /// the value that [`ToLoop::Vacated`] brings to the client is dropped.
    fn vacate(&mut self, pool: &PoolRef<S>, database: &[u8], client: ClientId) {
        let _ = (pool, database);
        self.send(client.home, ToLoop::Vacated { client, kept: std::sync::Arc::new(()) });
    }
    /// Sends a cancel request; [`ToLoop::CancelDone`] comes when the server has closed that
    /// connection, which it does after it has signalled the backend.
    fn cancel(&mut self, request: CancelRequest);
    /// A client has left loop `home` for the successor. A host without a successor sends it back.
    fn give(&mut self, home: LoopId, client: MovedClient<S>) {
        self.send(home, ToLoop::TakeClient(Box::new(client), Arrival::BackFromSuccessor));
    }
    /// A client's server is to serve it from now on; no loop watches it. It comes back as
    /// [`ToLoop::BackFromInside`].
    fn go_inside(&mut self, client: ClientId, socket: &mut S, session: InsideSession<S>) {
        let _ = (socket, session);
        self.send(client.home, ToLoop::BackFromInside(BackFromInside::at_rest(client)));
    }
    /// A client is wanted back from inside, as soon as it is in no transaction.
    fn call_back(&mut self, client: ClientId) {
        let _ = client;
    }
    /// Cancels what a client runs inside. `request` is dropped once no later query can be hit.
    fn cancel_inside(&mut self, client: ClientId, request: Option<CancelKey>) {
        let _ = (client, request);
    }
    /// The connection ends, also where other processes have it, too.
    fn part(&mut self, socket: &S) {
        let _ = socket;
    }
    /// An event for the log: a connection closed, a fallback taken.
    fn event(&mut self, event: message::Event<'_>);
}
