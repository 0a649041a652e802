//! What the engine asks of the world around it.

use std::io;

use super::backend::PoolRef;
use super::message;
use super::message::ToLoop;
use super::socket::{Socket, Token};
use super::succession::{Arrival, MovedClient};
use crate::ids::{ClientId, LoopId, ServerAddressId, Slot};
use crate::wire::error::{ClientError, SqlState};

/// A cancel request to be sent to a server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CancelRequest {
    /// Which of the configured server addresses.
    pub server: ServerAddressId,
    /// Process id from BackendKeyData.
    pub process: u32,
    /// Key from BackendKeyData.
    pub key: Box<[u8]>,
    /// Where [`ToLoop::CancelDone`] goes.
    pub reply_to: LoopId,
    /// The backend's place there.
    pub backend: Slot,
}

/// What the engine asks of the world around it.
pub trait Host<S: Socket> {
    /// Watches a connection, edge-triggered, for everything. Readiness that is there already is
    /// reported. (That a server's connection takes bytes again need not be told before
    /// [`super::Engine::watch_for_room`] has named it.)
    fn watch(&mut self, socket: &S, token: Token) -> io::Result<()>;
    /// Stops the watch that loop `home` keeps on a connection.
    fn unwatch(&mut self, socket: &S, home: LoopId);
    /// Sends a message to a loop (also to this one).
    fn send(&mut self, to: LoopId, message: ToLoop<S>);
    /// Has a backend opened for the pool. It comes as [`ToLoop::Opened`] to loop `home`, or
    /// the pool is told of the failure ([`ToLoop::OpenFailed`]).
    fn open(&mut self, pool: &PoolRef<S>, home: LoopId);
    /// Has a connection opened that listens for a pool's clients, outside of the pool's size. It
    /// comes as [`ToLoop::ListenerOpened`] to loop `home`, or [`ToLoop::ListenerFailed`] does.
    fn open_listener(&mut self, pool: &PoolRef<S>, home: LoopId) {
        let error = ClientError::error(SqlState::FEATURE_NOT_SUPPORTED, "nobody listens here");
        self.send(home, ToLoop::ListenerFailed { pool: pool.clone(), error });
    }
    /// Has the idle connections to a database closed, on all servers of a pool, and none opened until
    /// what [`ToLoop::Vacated`] brings to the client is dropped.
    fn vacate(&mut self, pool: &PoolRef<S>, database: &[u8], client: ClientId) {
        let _ = (pool, database);
        self.send(client.home, ToLoop::Vacated { client, kept: std::sync::Arc::new(()) });
    }
    /// Has a cancel request sent; [`ToLoop::CancelDone`] comes when the server has closed that
    /// connection, which it does after it has signalled the backend.
    fn cancel(&mut self, request: CancelRequest);
    /// A client has left loop `home` for the successor: there is none where nobody says so, and it comes
    /// back.
    fn give(&mut self, home: LoopId, client: MovedClient<S>) {
        self.send(home, ToLoop::TakeClient(Box::new(client), Arrival::BackFromSuccessor));
    }
    /// One event for the log: a connection closed, a fallback taken.
    fn event(&mut self, event: message::Event<'_>);
}
