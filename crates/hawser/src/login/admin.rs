//! The entry to the admin database: what serves a client that asks for it.

use std::future::Future;
use std::pin::Pin;

use hawser_pooler::relay::ClientAbout;

use crate::socket::stream::Stream;

/// What a client of the admin database may do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AdminRole {
    /// Everything (`admin_users`).
    Admin,
    /// SHOW (`stats_users`).
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

/// Serves a client of the admin database until it leaves.
pub type Console =
    Box<dyn Fn(AdminClient) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;
