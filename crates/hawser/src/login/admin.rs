//! The entry to the admin database: what serves a client that asks for it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use hawser_core::engine::ClientAbout;
use hawser_core::wire::error::{ClientError, SqlState};
use tokio::io::AsyncWriteExt;

use crate::admin::command::Command;
use crate::listeners::SocketPath;
use crate::service::Service;
use crate::socket::stream::Stream;
use crate::takeover::order::Order;

/// What a client of the admin database may do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AdminRole {
    /// Everything.
    Admin,
    /// SHOW.
    Stats,
}

/// A client of the admin database that has logged in. Nothing has been sent to it after
/// AuthenticationOk.
pub struct AdminClient {
    /// Its connection.
    pub stream: Stream,
    /// Its user.
    pub user: String,
    /// What it may do.
    pub role: AdminRole,
    /// The database that it asked for.
    pub database: String,
    /// Where it is, and its TLS.
    pub about: ClientAbout,
    /// The name of its program.
    pub application_name: String,
    /// Frees its place under the limits when it is dropped.
    pub permit: Box<dyn std::any::Any + Send>,
}

/// Serves the admin database.
pub trait AdminConsole: Send + Sync {
    /// The process is about to serve: other ways of administration may open their sockets. Called
    /// within the runtime. Returns the files of its unix sockets: they are removed when the process
    /// ends.
    ///
    /// # Errors
    /// A socket cannot be listened on; the process does not serve then.
    fn begin(&self, service: &Arc<Service>) -> Result<Vec<SocketPath>, String> {
        let _ = service;
        Ok(Vec::new())
    }

    /// Runs a command of the console for a signal: nothing waits for its end.
    fn command(&self, service: &Arc<Service>, command: Command) {
        let _ = (service, command);
    }

    /// Carries out what the successor passes on for the clients of this process.
    ///
    /// # Errors
    /// Why it has not been done.
    fn obey(
        &self,
        service: &Arc<Service>,
        order: Order,
    ) -> Pin<Box<dyn Future<Output = Result<(), String>> + Send>> {
        let _ = (service, order);
        Box::pin(std::future::ready(Ok(())))
    }

    /// Serves one client until it leaves.
    fn serve(
        &self,
        service: Arc<Service>,
        client: AdminClient,
    ) -> Pin<Box<dyn Future<Output = ()> + Send>>;
}

/// Refuses every client of the admin database: there is none.
#[derive(Debug, Default)]
pub struct NoConsole;

impl AdminConsole for NoConsole {
    fn serve(
        &self,
        _: Arc<Service>,
        mut client: AdminClient,
    ) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(async move {
            let mut out = Vec::new();
            ClientError::fatal(
                SqlState::FEATURE_NOT_SUPPORTED,
                "this process has no admin console",
            )
            .write(&mut out);
            // The client may have left.
            let _ = client.stream.write_all(&out).await;
            let _ = client.stream.shutdown().await;
        })
    }
}
