-- One row for each backend, as in pg_stat_ssl; this one came over a unix socket or plain TCP.
SELECT mptcp, fallback, subflows FROM hawser.pg_stat_mptcp WHERE pid = pg_backend_pid();
SELECT count(*) AS differences FROM hawser.pg_stat_mptcp m FULL JOIN pg_stat_ssl s USING (pid)
WHERE m.pid IS NULL OR s.pid IS NULL;
-- Others' rows are for pg_monitor.
CREATE ROLE regress_hawser_nobody;
CREATE ROLE regress_hawser_monitor;
GRANT pg_monitor TO regress_hawser_monitor;
SET ROLE regress_hawser_nobody;
SELECT count(*) FROM hawser.pg_stat_mptcp;
SET ROLE regress_hawser_monitor;
SELECT count(*) > 0 AS seen FROM hawser.pg_stat_mptcp;
RESET ROLE;
DROP ROLE regress_hawser_nobody, regress_hawser_monitor;
