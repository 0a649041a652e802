/* hawser 0.1.0. Everything is named with its schema: no search_path is trusted. */

\echo Use "CREATE EXTENSION hawser" to load this file. \quit

-- Fails where there is such a schema: what others put there must not become part of this.
CREATE SCHEMA hawser;
GRANT USAGE ON SCHEMA hawser TO PUBLIC;

CREATE FUNCTION hawser.mptcp_backends(
    OUT pid pg_catalog.int4,
    OUT mptcp pg_catalog.bool,
    OUT fallback pg_catalog.bool,
    OUT subflows pg_catalog.int4,
    OUT local_token pg_catalog.int8,
    OUT remote_token pg_catalog.int8,
    OUT bytes_sent pg_catalog.int8,
    OUT bytes_received pg_catalog.int8,
    OUT bytes_retransmitted pg_catalog.int8,
    OUT subflow_rates pg_catalog.int8[])
RETURNS SETOF pg_catalog.record
LANGUAGE c STRICT VOLATILE PARALLEL RESTRICTED
AS 'MODULE_PATHNAME', 'hawser_mptcp_backends';
COMMENT ON FUNCTION hawser.mptcp_backends() IS
    'MPTCP of the connections of backends that the caller may see, as the kernel knows it now';

CREATE VIEW hawser.pg_stat_mptcp AS
    SELECT m.pid, m.mptcp, m.fallback, m.subflows, m.local_token, m.remote_token,
           m.bytes_sent, m.bytes_received, m.bytes_retransmitted, m.subflow_rates
    FROM hawser.mptcp_backends() AS m;
GRANT SELECT ON hawser.pg_stat_mptcp TO PUBLIC;
COMMENT ON VIEW hawser.pg_stat_mptcp IS 'one row for each backend and walsender, as in pg_stat_ssl';

-- What SHOW hawser.state says, or NULL where the session did not ask for it.
CREATE FUNCTION hawser.session_state() RETURNS pg_catalog.text
LANGUAGE sql STABLE PARALLEL RESTRICTED
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT nullif(current_setting('hawser.state', true), '')
$$;
COMMENT ON FUNCTION hawser.session_state() IS
    'what this session had at the end of its last transaction, as it was told to its client';
