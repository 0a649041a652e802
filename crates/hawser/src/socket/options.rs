//! TCP options from the configuration.

use std::time::Duration;

use hawser_sys::stream::TcpOptions;

use crate::config::{NetworkSettings, Timeout};

/// TCP options of connections to servers: keepalive detects a lost server within `lost_timeout`.
pub fn server_tcp_options(network: &NetworkSettings, lost_timeout: Timeout) -> TcpOptions {
    let mut options = tcp_options(network);
    if let Some(timeout) = lost_timeout.get() {
        // The first probe comes after `idle`; one interval after the last the connection is given
        // up.
        options.keepalive_count = LOST_PROBES;
        options.keepalive_interval = Duration::from_secs((timeout.as_secs() / 5).max(1));
        let probing = options.keepalive_interval * LOST_PROBES;
        options.keepalive_idle = timeout.saturating_sub(probing).max(Duration::from_secs(1));
    }
    options
}

/// Keepalive probes that a server must have left unanswered.
const LOST_PROBES: u32 = 3;

/// Those of connections from clients.
pub fn tcp_options(network: &NetworkSettings) -> TcpOptions {
    let or_zero = |timeout: Timeout| timeout.get().unwrap_or_default();
    TcpOptions {
        keepalive: network.tcp_keepalive,
        keepalive_idle: or_zero(network.tcp_keepidle),
        keepalive_interval: or_zero(network.tcp_keepintvl),
        keepalive_count: network.tcp_keepcnt,
        user_timeout: or_zero(network.tcp_user_timeout),
        buffer_bytes: network.tcp_socket_buffer.to_usize(),
    }
}
