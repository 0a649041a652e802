//! The columns are a contract: PgBouncer 1.26's, in its order and with its types, then ours.

use ConsoleVersion::{V1_23, V1_24, V1_25, V1_26};

use super::*;
use crate::admin::table::Kind;
use crate::config::ConsoleVersion;

/// A line a topic: PgBouncer's columns as its source has them (types: s text, i int4, q int8, N
/// numeric, T text), and after `|` ours.
const EXPECTED: &[(Topic, &str, &str)] = &[
    (
        Topic::Pools,
        "ssiiiiiiiiiiiiiss iiiisiiiiqi",
        "database user cl_active cl_waiting cl_active_cancel_req cl_waiting_cancel_req sv_active \
         sv_active_cancel sv_being_canceled sv_idle sv_used sv_tested sv_login maxwait maxwait_us \
         pool_mode load_balance_hosts | sv_parked pool_size reserve_pool_size paused last_error \
         sv_listen channels sv_pinned sv_exact settings_mismatches sv_asking",
    ),
    (
        Topic::Clients,
        "ssssssisiTTiiississii sisii",
        "type user database replication state addr port local_addr local_port connect_time \
         request_time wait wait_us close_needed ptr link remote_pid tls application_name \
         prepared_statements id | pins parked transport channels pinned_seconds",
    ),
    (
        Topic::Sockets,
        "ssssssisiTTiiississiiiiiiiiis",
        "type user database replication state addr port local_addr local_port connect_time \
         request_time wait wait_us close_needed ptr link remote_pid tls application_name \
         prepared_statements id recv_pos pkt_pos pkt_remain send_pos send_remain pkt_avail \
         send_avail | transport",
    ),
    (
        Topic::Databases,
        "ssissiiiissiiiiii si",
        "name host port database force_user pool_size min_pool_size reserve_pool_size \
         server_lifetime pool_mode load_balance_hosts max_connections current_connections \
         max_client_connections current_client_connections paused disabled | \
         target_session_attrs idle_transaction_reserve",
    ),
    (
        Topic::Users,
        "ssssiiii",
        "name pool_size reserve_pool_size pool_mode max_user_connections current_connections \
         max_user_client_connections current_client_connections",
    ),
    (
        Topic::Stats,
        "sNNNNNNNNNNNNNNNNNNNNNNNN",
        "database total_server_assignment_count total_xact_count total_query_count total_received \
         total_sent total_xact_time total_query_time total_wait_time total_client_parse_count \
         total_server_parse_count total_bind_count total_client_login_count avg_server_assignment_count avg_xact_count \
         avg_query_count avg_recv avg_sent avg_xact_time avg_query_time avg_wait_time \
         avg_client_parse_count avg_server_parse_count avg_bind_count avg_client_login_count",
    ),
    (
        Topic::StatsTotals,
        "sNNNNNNNNNNNN",
        "database server_assignment_count xact_count query_count bytes_received bytes_sent \
         xact_time query_time wait_time client_parse_count server_parse_count bind_count client_login_count",
    ),
    (
        Topic::StatsAverages,
        "sNNNNNNNNNNNN",
        "database server_assignment_count xact_count query_count bytes_received bytes_sent \
         xact_time query_time wait_time avg_client_parse_count avg_server_parse_count \
         avg_bind_count avg_client_login_count",
    ),
    (Topic::Totals, "sN", "name value"),
    (Topic::Lists, "si", "list items"),
    (Topic::Mem, "siiii", "name size used free memtotal"),
    (
        Topic::Fds,
        "issssiqisssssss",
        "fd task user database addr port cancel link client_encoding std_strings datestyle \
         timezone password scram_client_key scram_server_key",
    ),
    (Topic::DnsHosts, "sqs", "hostname ttl addrs"),
    (Topic::Hosts, "ssssqis", "database server state role lag_ms failures reason"),
    (Topic::Limits, "ssiiiii", "setting name limit used held wanted unsure"),
    (
        Topic::Rules,
        "ssssqqqqi",
        "name of matches_on action expires_in matches refused cut_off running",
    ),
    (Topic::DnsZones, "sqi", "zonename serial count"),
    (Topic::Config, "ssss", "key value default changeable"),
    (Topic::Version, "s", "version"),
    (Topic::State, "ss", "key value"),
    (Topic::Peers, "isii", "peer_id host port pool_size"),
    (
        Topic::Queries(crate::queries::order::Order::Time),
        "sssNNNNNNNNNNssss",
        "digest database user calls errors rows bytes time mean p50 p95 p99 wait last_seen addr \
         query example",
    ),
    (
        Topic::PeerPools,
        "iiiii",
        "peer_id cl_active_cancel_req cl_waiting_cancel_req sv_active_cancel sv_login",
    ),
    (
        Topic::Pins,
        "ssssssissi i",
        "database user reason client server addr port application_name request_time id | seconds",
    ),
];

#[test]
fn columns_are_pgbouncers_in_its_order_and_then_ours() {
    for (topic, kinds, names) in EXPECTED {
        let expected: Vec<_> = names
            .split_whitespace()
            .filter(|name| *name != "|")
            .zip(kinds.chars().filter(|kind| *kind != ' '))
            .map(|(name, kind)| {
                let kind = match kind {
                    'i' => Kind::Int4,
                    'q' => Kind::Int8,
                    'N' => Kind::Numeric,
                    _ => Kind::Text,
                };
                (name, kind)
            })
            .collect();
        let found: Vec<_> = columns(*topic, Dialect::Hawser)
            .iter()
            .map(|column| (column.name, column.kind))
            .collect();
        assert_eq!(found, expected, "{topic:?}");
    }
    // SERVERS and CLIENTS, SOCKETS and ACTIVE_SOCKETS have the same; HELP has none.
    assert_eq!(columns(Topic::Servers, Dialect::Hawser), columns(Topic::Clients, Dialect::Hawser));
    assert_eq!(
        columns(Topic::ActiveSockets, Dialect::Hawser),
        columns(Topic::Sockets, Dialect::Hawser)
    );
    assert_eq!(EXPECTED.len() + 3, Topic::ALL.len());
}

/// PgBouncer's columns that are others before 1.26, by the releases that have them: from
/// RowDescription of src/admin.c and src/stats.c at its tags 1.23.1, 1.24.1 and 1.25.2.
const EARLIER: &[(&[ConsoleVersion], Topic, &str)] = &[
    (
        &[V1_23],
        Topic::Databases,
        "name host port database force_user pool_size min_pool_size reserve_pool server_lifetime \
         pool_mode max_connections current_connections paused disabled",
    ),
    (
        &[V1_23],
        Topic::Pools,
        "database user cl_active cl_waiting cl_active_cancel_req cl_waiting_cancel_req sv_active \
         sv_active_cancel sv_being_canceled sv_idle sv_used sv_tested sv_login maxwait maxwait_us \
         pool_mode",
    ),
    (
        &[V1_23],
        Topic::Sockets,
        "type user database replication state addr port local_addr local_port connect_time \
         request_time wait wait_us close_needed ptr link remote_pid tls application_name \
         prepared_statements recv_pos pkt_pos pkt_remain send_pos send_remain pkt_avail send_avail",
    ),
    (
        &[V1_23],
        Topic::Clients,
        "type user database replication state addr port local_addr local_port connect_time \
         request_time wait wait_us close_needed ptr link remote_pid tls application_name \
         prepared_statements",
    ),
    (&[V1_23], Topic::Users, "name pool_size pool_mode max_user_connections current_connections"),
    (
        &[V1_23],
        Topic::Stats,
        "database total_server_assignment_count total_xact_count total_query_count total_received \
         total_sent total_xact_time total_query_time total_wait_time avg_server_assignment_count \
         avg_xact_count avg_query_count avg_recv avg_sent avg_xact_time avg_query_time avg_wait_time",
    ),
    (
        &[V1_23],
        Topic::StatsTotals,
        "database server_assignment_count xact_count query_count bytes_received bytes_sent \
         xact_time query_time wait_time",
    ),
    (
        &[V1_23],
        Topic::StatsAverages,
        "database server_assignment_count xact_count query_count bytes_received bytes_sent \
         xact_time query_time wait_time",
    ),
    (
        &[V1_24, V1_25],
        Topic::Stats,
        "database total_server_assignment_count total_xact_count total_query_count total_received \
         total_sent total_xact_time total_query_time total_wait_time total_client_parse_count \
         total_server_parse_count total_bind_count avg_server_assignment_count avg_xact_count \
         avg_query_count avg_recv avg_sent avg_xact_time avg_query_time avg_wait_time \
         avg_client_parse_count avg_server_parse_count avg_bind_count",
    ),
    (
        &[V1_24, V1_25],
        Topic::StatsTotals,
        "database server_assignment_count xact_count query_count bytes_received bytes_sent \
         xact_time query_time wait_time client_parse_count server_parse_count bind_count",
    ),
    (
        &[V1_24, V1_25],
        Topic::StatsAverages,
        "database server_assignment_count xact_count query_count bytes_received bytes_sent \
         xact_time query_time wait_time avg_client_parse_count avg_server_parse_count \
         avg_bind_count",
    ),
];

#[test]
fn on_pgbouncers_database_the_columns_are_exactly_those_of_its_release() {
    for version in [V1_23, V1_24, V1_25, V1_26] {
        for (topic, _, names) in EXPECTED {
            let listed = EARLIER.iter().find(|(in_, of, _)| in_.contains(&version) && of == topic);
            let expected = match listed {
                Some((_, _, names)) => names,
                None => names.split('|').next().unwrap(),
            };
            if *topic == Topic::Pins {
                continue; // PgBouncer has none
            }
            let found: Vec<_> = columns(*topic, Dialect::PgBouncer(version))
                .iter()
                .map(|column| column.name)
                .collect();
            let expected: Vec<_> = expected.split_whitespace().collect();
            assert_eq!(found, expected, "{topic:?} of {version}");
        }
    }
}
