//! What reloads and what does not, as two types.
//!
//! A reload builds a new [`ReloadConfig`] and swaps it in; a [`StartConfig`] is read once. Code that
//! is given only one of them cannot mistake one for the other.

use super::database::DatabaseConfig;
use super::error::Rejected;
use super::link::LinkConfig;
use super::registry::{
    AdminSettings, AuthSettings, BypassSettings, ClientTlsSettings, ConsoleSettings, EtcdSettings,
    Group, LimitSettings, ListenSettings, LogSettings, LogStartSettings, NameSettings,
    NetworkSettings, PeerSettings, PoolSettings, ProcessSettings, ServerSettings,
    ServerTlsSettings, ShutdownSettings, TimeoutSettings,
};
use super::setting::Setting;
use super::value::{Context, Raw};

macro_rules! groups {
    ($(#[$doc:meta])* $Name:ident {
        $( $(#[$fdoc:meta])* $field:ident: $Group:ident, )+
        $( ; $( $(#[$edoc:meta])* $extra:ident: $ty:ty, )+ )?
    }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq)]
        pub struct $Name {
            $( $(#[$fdoc])* pub $field: $Group, )+
            $( $( $(#[$edoc])* pub $extra: $ty, )+ )?
        }

        impl $Name {
            pub(super) fn defaults() -> Self {
                Self {
                    $( $field: $Group::defaults(), )+
                    $( $( $extra: <$ty>::default(), )+ )?
                }
            }

            /// Sets one value; false if the setting is of no group here.
            pub(super) fn assign(&mut self, raw: &Raw<'_>, context: Context<'_>)
                -> Result<bool, Rejected>
            {
                Ok($( self.$field.assign(raw, context)? )||+)
            }

            /// Each setting with its value as SHOW CONFIG prints it.
            pub(super) fn shown(&self) -> Vec<(&'static Setting, String)> {
                let mut shown = Vec::new();
                $( shown.extend(self.$field.shown()); )+
                shown
            }
        }
    };
}

groups! {
    /// What is read once, at the start.
    StartConfig {
        /// Where clients connect.
        listen: ListenSettings,
        /// Metrics, health and control.
        admin: AdminSettings,
        /// Local connections past TCP.
        bypass: BypassSettings,
        /// Limits that several poolers share.
        etcd: EtcdSettings,
        /// The shape of the log.
        log: LogStartSettings,
        /// Threads, user, descriptors.
        process: ProcessSettings,
    }
}

groups! {
    /// What a reload replaces as a whole.
    ReloadConfig {
        /// Options of every connection.
        network: NetworkSettings,
        /// TLS with clients.
        client_tls: ClientTlsSettings,
        /// TLS with servers where a database says nothing else; databases have it resolved.
        server_tls: ServerTlsSettings,
        /// How clients log in. Databases have `auth_user` and so on resolved.
        auth: AuthSettings,
        /// The shape of pools; databases have it resolved.
        pool: PoolSettings,
        /// How many connections there may be.
        limits: LimitSettings,
        /// The life of a server connection.
        servers: ServerSettings,
        /// How long anything may take.
        timeouts: TimeoutSettings,
        /// Names of clients.
        names: NameSettings,
        /// The admin console.
        console: ConsoleSettings,
        /// What is logged.
        log: LogSettings,
        /// Other poolers.
        peers: PeerSettings,
        /// The end of the process.
        shutdown: ShutdownSettings,
        ;
        /// Every `[[database]]`, in the order of the file, with what it inherits.
        databases: Vec<DatabaseConfig>,
        /// Every `[link.NAME]`.
        links: Vec<LinkConfig>,
    }
}
