//! Takes the census of a database's functions ([`hawser_pooler::parts::functions::census`]) and gives it to its
//! pools.
//!
//! # Model
//! One census serves all pools of a database ([`KnownFunctions`]). It is taken for the first client, which waits for it,
//! before its pool's first server connection: that one may take the only place. It is taken again at
//! once when a pool has seen a statement that may have changed a function; and while the database is in use, if a
//! fingerprint of the catalogs shows a change, which is asked for so often that a change is known within [`WINDOW`].
//! A server connection of the control side asks ([`super::enquiry`]).
//!
//! # Limits
//! Changes that bypass Hawser are known after [`WINDOW`]: until then a client may see what a
//! function that was just made or changed has set for another.
//! Databases with more than [`SOURCES_BYTES_MAX`] of source are not looked into, which is logged
//! once. Of those, as long as no look has succeeded, and while the server has no connection or no answer for one, each
//! text counts as one that may do anything.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::{Duration, Instant};

use hawser_pooler::hash::Keyed;
use hawser_pooler::ids::PoolId;
use hawser_pooler::parts::functions::census::{
    ANY_TEXT, ANY_WRITE, Census, Function, Language, Link, Names,
};
use hawser_pooler::parts::functions::known::KnownFunctions;
use hawser_pooler::parts::start_values::parameters::ServerParameters;
use hawser_pooler::session::part::is_reported;
use hawser_pooler::wire::error::Severity;
use tokio::sync::Mutex as AsyncMutex;
use tokio::time::{sleep, timeout};

use super::enquiry::Enquiries;
use super::{PoolEntry, Pools, Route, locked};
use crate::config::ServerAddress;
use crate::dial::DialError;
use crate::dial::talk::{Answer, TalkError};
use crate::phase::Phase;
use crate::process::random_u64;
use crate::shared::Shared;

/// A change in a database that is in use is known within this time, which the pause between two looks and the look
/// share: where the server takes longer to answer, the pause is shorter. A bit less than the second that is promised.
const WINDOW: Duration = Duration::from_millis(950);
/// The longest pause between two looks.
const PAUSE_MAX: Duration = Duration::from_millis(800);
/// The shortest: a look takes the server some 5 ms, and 20 ms with thousands of functions.
const PAUSE_MIN: Duration = Duration::from_millis(200);
/// The same after a failed look.
const RETRY: Duration = Duration::from_secs(1);
/// How long a client waits for the first census of its database. Without it each transaction costs a
/// server connection; a server that hangs delays only the first client by this time.
const WAIT: Duration = Duration::from_secs(5);
/// The same for a census that is known, and may be old.
const WAIT_AGAIN: Duration = Duration::from_secs(1);
/// How long a place for its connection is waited for.
const PLACE_WAIT: Duration = Duration::from_millis(500);
/// Databases with more source are not looked into.
const SOURCES_BYTES_MAX: usize = 16 << 20;

/// Changes with the catalogs that the census reads, and with the names of the relations that have triggers, rules,
/// policies, partitions, checks or defaults; and the amount of source. Cheap, because it is asked for all the time: of
/// each catalog the number of rows that are not the server's own and the sum of their xmin, which age() gives
/// relative to the same transaction as that of a constant.
static FINGERPRINT: LazyLock<String> = LazyLock::new(|| {
    const OWN_BY_OID: &str = " WHERE x.oid OPERATOR(pg_catalog.>=) 16384";
    let rows = |(catalog, which): (&str, &str)| {
        format!(
            "(SELECT pg_catalog.concat(pg_catalog.count(*), ' ', pg_catalog.count(*) \
             OPERATOR(pg_catalog.*) pg_catalog.age('10'::pg_catalog.xid) \
             OPERATOR(pg_catalog.-) pg_catalog.sum(pg_catalog.age(x.xmin))) \
             FROM pg_catalog.{catalog} x{which}), ' ', "
        )
    };
    let catalogs = [
        ("pg_proc", OWN_BY_OID),
        ("pg_trigger", ""),
        ("pg_rewrite", OWN_BY_OID),
        ("pg_attrdef", ""),
        ("pg_constraint", OWN_BY_OID),
        ("pg_policy", ""),
        ("pg_inherits", ""),
        ("pg_event_trigger", ""),
        ("pg_operator", OWN_BY_OID),
        ("pg_cast", OWN_BY_OID),
        ("pg_amproc", OWN_BY_OID),
        (
            "pg_index",
            " WHERE x.indexrelid OPERATOR(pg_catalog.>=) 16384 \
         AND (x.indexprs IS NOT NULL OR x.indpred IS NOT NULL)",
        ),
        ("pg_statistic_ext", ""),
        ("pg_partitioned_table", ""),
        ("pg_range", " WHERE x.rngtypid OPERATOR(pg_catalog.>=) 16384"),
        (
            "pg_type",
            " WHERE x.oid OPERATOR(pg_catalog.>=) 16384 AND x.typtype OPERATOR(pg_catalog.=) 'd'",
        ),
    ];
    let rows: String = catalogs.into_iter().map(rows).collect();
    format!(
        "SELECT pg_catalog.concat({rows}(SELECT pg_catalog.sum(pg_catalog.hashtext(pg_catalog.concat(c.oid, ' ', c.relname))) \
         FROM pg_catalog.pg_class c WHERE c.oid OPERATOR(pg_catalog.>=) 16384 AND (c.relhastriggers \
         OR c.relhasrules OR c.relhassubclass OR c.relispartition OR c.relrowsecurity \
         OR c.oid OPERATOR(pg_catalog.=) ANY (SELECT k.conrelid FROM pg_catalog.pg_constraint k \
         WHERE k.oid OPERATOR(pg_catalog.>=) 16384 \
         UNION ALL SELECT a.adrelid FROM pg_catalog.pg_attrdef a)))), \
         (SELECT pg_catalog.sum(pg_catalog.octet_length(p.prosrc)) FROM pg_catalog.pg_proc p \
         WHERE p.oid OPERATOR(pg_catalog.>=) 16384)"
    )
});

/// Rows of five: a function (name, language, volatility, source), what any text may call (source), or what leads
/// where (from, to). A view, and a table with row security, may read settings and who the session is,
/// which matters where a function that is declared IMMUTABLE names it. Objects
/// below 16384 are the server's own (`FirstNormalObjectId`, transam.h). Functions in C count if the
/// planner calls them, unless an extension brings them. `=` stands for the operator of pg_catalog.
/// A user's function in the language internal is one of the server's by another name. A SET in a
/// function's head leaves nothing but a custom name, a seed, and what is made while `pg_temp` comes
/// first in its path. pg_depend has no dependencies on the server's own functions: the trees of
/// views, rules and other expressions have them by their oid. A write to a table whose rule has a
/// NOTIFY counts as a call of `pg_notify`, as does tcn's trigger function, the only one of the
/// distribution in C that notifies; dblink's function that connects counts by what it does, whatever
/// its name is by now. A trigger of TRUNCATE is called for the tables that its own
/// refers to, too (TRUNCATE ... CASCADE). What a domain checks no word shows: a function's argument may be of it, a
/// part of a composite, array or range, or a parameter whose type a Parse gives by its oid.
const CENSUS: &str = "\
SELECT 'function', p.proname::pg_catalog.text,
    CASE WHEN l.lanname = 'internal' THEN 'sql' ELSE l.lanname::pg_catalog.text END,
    p.provolatile::pg_catalog.text,
    CASE WHEN l.lanname = 'c' THEN '' WHEN l.lanname = 'internal' THEN
        (SELECT pg_catalog.string_agg(pg_catalog.concat('SELECT ', b.proname, '();'), '')
        FROM pg_catalog.pg_proc b WHERE b.prosrc = p.prosrc AND b.oid OPERATOR(pg_catalog.<) 16384)
    ELSE {SOURCE} END
FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_language l ON l.oid = p.prolang
WHERE (p.oid OPERATOR(pg_catalog.>=) 16384 AND NOT p.prokind = 'a'
    AND (NOT l.lanname = 'c' OR (p.provolatile = 'i' AND NOT EXISTS (SELECT 1
        FROM pg_catalog.pg_depend e WHERE e.objid = p.oid AND e.deptype = 'e'
        AND e.classid = 'pg_catalog.pg_proc'::pg_catalog.regclass))))
    OR (p.proname = 'current_setting' AND p.provolatile = 'i')
UNION ALL
SELECT 'function', p.proname::pg_catalog.text, 'sql', 'v',
    CASE WHEN s.setting OPERATOR(pg_catalog.~) '^search_path=' THEN 'CREATE TEMP TABLE t ()'
    ELSE pg_catalog.concat('SELECT set_config(',
        pg_catalog.quote_literal(pg_catalog.split_part(s.setting, '=', 1)), ', '''', true)') END
FROM pg_catalog.pg_proc p CROSS JOIN LATERAL pg_catalog.unnest(p.proconfig) s (setting)
WHERE pg_catalog.strpos(pg_catalog.split_part(s.setting, '=', 1), '.') OPERATOR(pg_catalog.>) 0
    OR s.setting OPERATOR(pg_catalog.~) '^(seed=|search_path=[\" ]*pg_temp)'
UNION ALL
SELECT 'function', c.relname::pg_catalog.text, 'sql', 'v', CASE WHEN r.ev_type = '1'
    THEN pg_catalog.pg_get_viewdef(r.ev_class)
    ELSE pg_catalog.substring(pg_catalog.pg_get_ruledef(r.oid), ' DO (.*)') END
FROM pg_catalog.pg_rewrite r JOIN pg_catalog.pg_class c ON c.oid = r.ev_class
WHERE r.oid OPERATOR(pg_catalog.>=) 16384
    AND r.ev_action::pg_catalog.text OPERATOR(pg_catalog.~) {OWN OR DRAWING}
UNION ALL
SELECT 'function', c.relname::pg_catalog.text, 'sql', 'v',
    pg_catalog.concat('SELECT ', pg_catalog.pg_get_expr(a.adbin, a.adrelid))
FROM pg_catalog.pg_attrdef a JOIN pg_catalog.pg_class c ON c.oid = a.adrelid
WHERE a.adbin::pg_catalog.text OPERATOR(pg_catalog.~) {OWN}
UNION ALL
SELECT 'function', c.relname::pg_catalog.text, 'sql', 'v',
    pg_catalog.concat('SELECT ', pg_catalog.pg_get_constraintdef(k.oid))
FROM pg_catalog.pg_constraint k JOIN pg_catalog.pg_class c ON c.oid = k.conrelid
WHERE k.conbin::pg_catalog.text OPERATOR(pg_catalog.~) {OWN}
UNION ALL
SELECT 'function', c.relname::pg_catalog.text, 'sql', 'v', pg_catalog.concat('SELECT ',
    pg_catalog.pg_get_expr(y.polqual, y.polrelid), ', ', pg_catalog.pg_get_expr(y.polwithcheck, y.polrelid))
FROM pg_catalog.pg_policy y JOIN pg_catalog.pg_class c ON c.oid = y.polrelid
WHERE pg_catalog.concat(y.polqual::pg_catalog.text, y.polwithcheck::pg_catalog.text)
    OPERATOR(pg_catalog.~) {OWN}
UNION ALL
SELECT 'function', c.relname::pg_catalog.text, 'sql', 'v', pg_catalog.concat('SELECT ',
    pg_catalog.substring(pg_catalog.pg_get_triggerdef(t.oid), ' WHEN (.*) EXECUTE (FUNCTION|PROCEDURE) '))
FROM pg_catalog.pg_trigger t JOIN pg_catalog.pg_class c ON c.oid = t.tgrelid
WHERE t.tgqual::pg_catalog.text OPERATOR(pg_catalog.~) {OWN}
UNION ALL
SELECT 'function', p.proname::pg_catalog.text, 'sql', 'v', pg_catalog.concat('SELECT ', b.proname, '()')
FROM pg_catalog.pg_aggregate a JOIN pg_catalog.pg_proc p ON p.oid = a.aggfnoid
JOIN pg_catalog.pg_proc b ON b.oid = ANY (ARRAY[a.aggtransfn, a.aggfinalfn, a.aggcombinefn,
    a.aggserialfn, a.aggdeserialfn, a.aggmtransfn, a.aggminvtransfn, a.aggmfinalfn]::pg_catalog.oid[])
WHERE p.oid OPERATOR(pg_catalog.>=) 16384 AND b.oid OPERATOR(pg_catalog.<) 16384
UNION ALL
SELECT 'function', c.relname::pg_catalog.text, 'sql', 'v', 'SELECT current_setting()'
FROM pg_catalog.pg_class c WHERE (c.relkind = 'v' OR c.relrowsecurity) AND EXISTS (SELECT 1
    FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_language l ON l.oid = p.prolang
    WHERE p.oid OPERATOR(pg_catalog.>=) 16384 AND p.provolatile = 'i' AND NOT l.lanname = 'c')
UNION ALL
SELECT 'function', p.proname::pg_catalog.text, 'sql', 'v', 'SELECT pg_notify()'
FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_language l ON l.oid = p.prolang
WHERE l.lanname = 'c' AND p.prosrc = 'triggered_change_notification'
UNION ALL
SELECT 'function', p.proname::pg_catalog.text, 'sql', 'v', 'SELECT dblink_connect()'
FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_language l ON l.oid = p.prolang
WHERE l.lanname = 'c' AND p.prosrc = 'dblink_connect'
UNION ALL
SELECT DISTINCT 'function', 'pg_notify', 'sql', 'v', 'SELECT pg_notify()'
FROM pg_catalog.pg_rewrite r WHERE r.ev_action::pg_catalog.text OPERATOR(pg_catalog.~) {NOTIFY}
UNION ALL
SELECT 'write calls', c.relname::pg_catalog.text, 'pg_notify', NULL, NULL
FROM pg_catalog.pg_rewrite r JOIN pg_catalog.pg_class c ON c.oid = r.ev_class
WHERE r.ev_action::pg_catalog.text OPERATOR(pg_catalog.~) {NOTIFY}
UNION ALL
SELECT DISTINCT 'function', 'pg_settings_u', 'sql', 'v', 'UPDATE pg_settings SET setting=setting'
FROM pg_catalog.pg_rewrite r WHERE {OF SETTINGS}
UNION ALL
SELECT 'write calls', c.relname::pg_catalog.text, 'pg_settings_u', NULL, NULL
FROM pg_catalog.pg_rewrite r JOIN pg_catalog.pg_class c ON c.oid = r.ev_class
WHERE {OF SETTINGS}
UNION ALL
SELECT 'name', n.name, n.own, NULL, NULL
FROM (SELECT p.proname::pg_catalog.text, (p.oid OPERATOR(pg_catalog.>=) 16384)::pg_catalog.text FROM pg_catalog.pg_proc p
    UNION SELECT c.relname::pg_catalog.text, (c.oid OPERATOR(pg_catalog.>=) 16384)::pg_catalog.text FROM pg_catalog.pg_class c
        WHERE c.relkind = ANY ('{r,v,m,p,f}')
    UNION SELECT t.typname::pg_catalog.text, (t.oid OPERATOR(pg_catalog.>=) 16384)::pg_catalog.text FROM pg_catalog.pg_type t
        WHERE t.typelem = 0
    UNION SELECT m.amname::pg_catalog.text, (m.oid OPERATOR(pg_catalog.>=) 16384)::pg_catalog.text FROM pg_catalog.pg_am m
    UNION SELECT k.word, 'false' FROM pg_catalog.pg_get_keywords() k) n (name, own)
UNION ALL
SELECT 'any', NULL, NULL, NULL, pg_catalog.concat('SELECT ', p.proname, '()')
FROM (SELECT o.oprcode::pg_catalog.oid FROM pg_catalog.pg_operator o
        WHERE o.oid OPERATOR(pg_catalog.>=) 16384
    UNION ALL SELECT s.castfunc FROM pg_catalog.pg_cast s WHERE s.oid OPERATOR(pg_catalog.>=) 16384
    UNION ALL SELECT m.amproc::pg_catalog.oid FROM pg_catalog.pg_amproc m
        WHERE m.oid OPERATOR(pg_catalog.>=) 16384
    UNION ALL SELECT g.rngcanonical::pg_catalog.oid FROM pg_catalog.pg_range g
        WHERE g.rngtypid OPERATOR(pg_catalog.>=) 16384
    UNION ALL SELECT g.rngsubdiff::pg_catalog.oid FROM pg_catalog.pg_range g
        WHERE g.rngtypid OPERATOR(pg_catalog.>=) 16384
    UNION ALL SELECT d.refobjid FROM pg_catalog.pg_depend d JOIN pg_catalog.pg_constraint k ON k.oid = d.objid
        WHERE d.classid = 'pg_catalog.pg_constraint'::pg_catalog.regclass AND NOT k.contypid = 0
            AND d.refclassid = 'pg_catalog.pg_proc'::pg_catalog.regclass) f (called)
JOIN pg_catalog.pg_proc p ON p.oid = f.called
JOIN pg_catalog.pg_language l ON l.oid = p.prolang
WHERE NOT l.lanname = 'c'
UNION ALL
SELECT 'any', NULL, NULL, NULL, pg_catalog.concat('SELECT ', pg_catalog.pg_get_constraintdef(k.oid))
FROM pg_catalog.pg_constraint k
WHERE NOT k.contypid = 0 AND k.conbin::pg_catalog.text OPERATOR(pg_catalog.~) {OWN}
UNION ALL
SELECT 'function', p.proname::pg_catalog.text, 'sql', 'v',
    pg_catalog.concat('SELECT ', pg_catalog.pg_get_function_arguments(p.oid))
FROM pg_catalog.pg_proc p WHERE p.oid OPERATOR(pg_catalog.>=) 16384
    AND p.proargdefaults::pg_catalog.text OPERATOR(pg_catalog.~) {OWN}
UNION ALL
SELECT 'function', t.typname::pg_catalog.text, 'sql', 'v',
    pg_catalog.concat('SELECT ', pg_catalog.pg_get_expr(t.typdefaultbin, 0))
FROM pg_catalog.pg_type t
WHERE t.typtype = 'd' AND t.typdefaultbin::pg_catalog.text OPERATOR(pg_catalog.~) {OWN}
UNION ALL
SELECT DISTINCT 'any write', NULL, NULL, NULL, pg_catalog.concat('SELECT ', p.proname, '()')
FROM pg_catalog.pg_depend d JOIN pg_catalog.pg_proc p ON p.oid = d.refobjid
WHERE d.refclassid = 'pg_catalog.pg_proc'::pg_catalog.regclass AND p.oid OPERATOR(pg_catalog.>=) 16384
    AND (d.classid = ANY (ARRAY['pg_catalog.pg_attrdef'::pg_catalog.regclass,
            'pg_catalog.pg_constraint'::pg_catalog.regclass, 'pg_catalog.pg_class'::pg_catalog.regclass,
            'pg_catalog.pg_statistic_ext'::pg_catalog.regclass, 'pg_catalog.pg_type'::pg_catalog.regclass]::pg_catalog.oid[])
        OR EXISTS (SELECT 1 FROM pg_catalog.pg_rewrite r WHERE r.oid = d.objid AND NOT r.ev_type = '1'
            AND d.classid = 'pg_catalog.pg_rewrite'::pg_catalog.regclass))
UNION ALL
SELECT 'any write', NULL, NULL, NULL, pg_catalog.concat('SELECT ', e.expression)
FROM (SELECT pg_catalog.pg_get_expr(a.adbin, a.adrelid) FROM pg_catalog.pg_attrdef a
        WHERE a.adbin::pg_catalog.text OPERATOR(pg_catalog.~) {OWN}
    UNION SELECT pg_catalog.pg_get_constraintdef(k.oid) FROM pg_catalog.pg_constraint k
        WHERE k.conbin::pg_catalog.text OPERATOR(pg_catalog.~) {OWN}
    UNION SELECT pg_catalog.pg_get_expr(t.typdefaultbin, 0) FROM pg_catalog.pg_type t
        WHERE t.typtype = 'd' AND t.typdefaultbin::pg_catalog.text OPERATOR(pg_catalog.~) {OWN}
    {STATISTICS}
    UNION SELECT pg_catalog.substring(pg_catalog.pg_get_ruledef(r.oid), ' DO (.*)') FROM pg_catalog.pg_rewrite r
        WHERE r.oid OPERATOR(pg_catalog.>=) 16384 AND NOT r.ev_type = '1'
            AND r.ev_action::pg_catalog.text OPERATOR(pg_catalog.~) {OWN}) e (expression)
UNION ALL
SELECT DISTINCT 'calls', c.relname::pg_catalog.text, t.typname::pg_catalog.text, NULL, NULL
FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_class c ON c.oid = a.attrelid
JOIN pg_catalog.pg_type u ON u.oid = a.atttypid
JOIN pg_catalog.pg_type t ON t.oid = CASE WHEN u.typtype = 'd' THEN u.oid ELSE u.typelem END
WHERE t.typtype = 'd' AND t.oid OPERATOR(pg_catalog.>=) 16384
UNION ALL
SELECT 'calls', t.typname::pg_catalog.text, b.typname::pg_catalog.text, NULL, NULL
FROM pg_catalog.pg_type t JOIN pg_catalog.pg_type b ON b.oid = t.typbasetype
WHERE t.typtype = 'd' AND b.typtype = 'd' AND b.oid OPERATOR(pg_catalog.>=) 16384
UNION ALL
SELECT 'write calls', c.relname::pg_catalog.text, p.proname::pg_catalog.text, NULL, NULL
FROM pg_catalog.pg_depend d JOIN pg_catalog.pg_trigger t ON t.oid = d.objid
JOIN pg_catalog.pg_class c ON c.oid = t.tgrelid JOIN pg_catalog.pg_proc p ON p.oid = d.refobjid
WHERE d.classid = 'pg_catalog.pg_trigger'::pg_catalog.regclass
    AND d.refclassid = 'pg_catalog.pg_proc'::pg_catalog.regclass AND p.oid OPERATOR(pg_catalog.>=) 16384
UNION ALL
SELECT 'write calls', c.relname::pg_catalog.text, p.proname::pg_catalog.text, NULL, NULL
FROM (WITH RECURSIVE emptied (relation, called) AS (
        SELECT t.tgrelid, t.tgfoid FROM pg_catalog.pg_trigger t
        WHERE NOT (t.tgtype OPERATOR(pg_catalog.&) 32::pg_catalog.int2) = 0
            AND t.tgfoid OPERATOR(pg_catalog.>=) 16384
        UNION SELECT k.confrelid, e.called
        FROM emptied e JOIN pg_catalog.pg_constraint k ON k.conrelid = e.relation AND k.contype = 'f')
    SELECT e.relation, e.called FROM emptied e) e
JOIN pg_catalog.pg_class c ON c.oid = e.relation JOIN pg_catalog.pg_proc p ON p.oid = e.called
UNION ALL
SELECT 'calls', w.word, p.proname::pg_catalog.text, NULL, NULL
FROM pg_catalog.pg_event_trigger t JOIN pg_catalog.pg_proc p ON p.oid = t.evtfoid
CROSS JOIN (VALUES ('create'), ('alter'), ('drop'), ('comment'), ('grant'), ('revoke'), ('import'),
    ('into'), ('reassign'), ('refresh'), ('reindex'), ('security')) w (word)
UNION ALL
SELECT 'calls', pg_catalog.coalesce_name, p.proname::pg_catalog.text, NULL, NULL
FROM pg_catalog.pg_depend d JOIN pg_catalog.pg_proc p ON p.oid = d.refobjid
LEFT JOIN pg_catalog.pg_rewrite r ON r.oid = d.objid AND d.classid = 'pg_catalog.pg_rewrite'::pg_catalog.regclass
LEFT JOIN pg_catalog.pg_attrdef a ON a.oid = d.objid AND d.classid = 'pg_catalog.pg_attrdef'::pg_catalog.regclass
LEFT JOIN pg_catalog.pg_constraint k ON k.oid = d.objid AND d.classid = 'pg_catalog.pg_constraint'::pg_catalog.regclass
LEFT JOIN pg_catalog.pg_policy y ON y.oid = d.objid AND d.classid = 'pg_catalog.pg_policy'::pg_catalog.regclass
LEFT JOIN pg_catalog.pg_index i ON i.indexrelid = d.objid AND d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass
LEFT JOIN pg_catalog.pg_partitioned_table g
    ON g.partrelid = d.objid AND d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass
LEFT JOIN pg_catalog.pg_statistic_ext s
    ON s.oid = d.objid AND d.classid = 'pg_catalog.pg_statistic_ext'::pg_catalog.regclass
LEFT JOIN pg_catalog.pg_proc q ON q.oid = d.objid AND d.classid = 'pg_catalog.pg_proc'::pg_catalog.regclass
LEFT JOIN pg_catalog.pg_type t
    ON t.oid = d.objid AND d.classid = 'pg_catalog.pg_type'::pg_catalog.regclass AND t.typtype = 'd'
LEFT JOIN pg_catalog.pg_class c
    ON c.oid = COALESCE(r.ev_class, a.adrelid, k.conrelid, y.polrelid, i.indrelid, g.partrelid, s.stxrelid)
WHERE d.refclassid = 'pg_catalog.pg_proc'::pg_catalog.regclass AND p.oid OPERATOR(pg_catalog.>=) 16384
    AND COALESCE(c.relname, t.typname, q.proname) IS NOT NULL
UNION ALL
SELECT 'stands for', v.relname::pg_catalog.text, c.relname::pg_catalog.text, NULL, NULL
FROM pg_catalog.pg_depend d JOIN pg_catalog.pg_rewrite r ON r.oid = d.objid
JOIN pg_catalog.pg_class v ON v.oid = r.ev_class JOIN pg_catalog.pg_class c ON c.oid = d.refobjid
WHERE d.classid = 'pg_catalog.pg_rewrite'::pg_catalog.regclass
    AND d.refclassid = 'pg_catalog.pg_class'::pg_catalog.regclass AND NOT v.oid = c.oid
    AND v.oid OPERATOR(pg_catalog.>=) 16384 AND c.oid OPERATOR(pg_catalog.>=) 16384
UNION ALL
SELECT 'stands for', c.relname::pg_catalog.text, h.relname::pg_catalog.text, NULL, NULL
FROM pg_catalog.pg_inherits i JOIN pg_catalog.pg_class c ON c.oid = i.inhparent
JOIN pg_catalog.pg_class h ON h.oid = i.inhrelid
WHERE NOT (h.relkind = 'i' OR h.relkind = 'I')
UNION ALL
SELECT 'write writes', c.relname::pg_catalog.text, h.relname::pg_catalog.text, NULL, NULL
FROM pg_catalog.pg_constraint k JOIN pg_catalog.pg_class c ON c.oid = k.confrelid
JOIN pg_catalog.pg_class h ON h.oid = k.conrelid
WHERE k.contype = 'f' AND NOT ((k.confdeltype = 'a' OR k.confdeltype = 'r')
    AND (k.confupdtype = 'a' OR k.confupdtype = 'r'))";

/// A view of a user on `pg_settings`: an UPDATE of it becomes one of that, whose rule `pg_settings_u` calls
/// `set_config()`.
const OF_SETTINGS: &str = "r.oid OPERATOR(pg_catalog.>=) 16384 AND r.ev_type = '1' AND r.ev_action::pg_catalog.text \
    OPERATOR(pg_catalog.~) (SELECT pg_catalog.concat(':relid ', w.oid, ' ') FROM pg_catalog.pg_class w \
    WHERE w.oid OPERATOR(pg_catalog.<) 16384 AND w.relname = 'pg_settings')";

/// The source of a function, and the expressions of extended statistics, from PostgreSQL 14 on and before.
const BY_VERSION: [(&str, &str); 2] = [
    (
        "COALESCE(pg_catalog.pg_get_function_sqlbody(p.oid), p.prosrc)",
        "UNION SELECT pg_catalog.array_to_string(pg_catalog.pg_get_statisticsobjdef_expressions(s.oid), ', ') \
         FROM pg_catalog.pg_statistic_ext s WHERE s.stxexprs::pg_catalog.text OPERATOR(pg_catalog.~) {OWN}",
    ),
    ("p.prosrc", ""),
];

/// The text in an expression's tree that calls such a function of the server, or reads a view of
/// the session's state.
const OWN: &str = "(SELECT pg_catalog.concat(':(funcid (', \
    pg_catalog.string_agg(o.oid::pg_catalog.text, '|'), ')|relid (', \
    (SELECT pg_catalog.string_agg(w.oid::pg_catalog.text, '|') FROM pg_catalog.pg_class w \
    WHERE w.oid OPERATOR(pg_catalog.<) 16384 \
    AND w.relname = ANY ('{pg_prepared_statements,pg_cursors,pg_settings}')), ')) ') \
    FROM pg_catalog.pg_proc o \
    WHERE o.oid OPERATOR(pg_catalog.<) 16384 AND o.proname OPERATOR(pg_catalog.~) \
    '^(set_config|setseed|currval|lastval|pg_notify|pg_(try_)?advisory_(un)?lock.*|\
pg_prepared_statement|pg_cursor|pg_listening_channels|\
(query|cursor|table|schema|database)_to_xml.*|ts_stat|ts_rewrite)$')";

/// The text in the tree of a rule that notifies (NOTIFY before PostgreSQL 16, NOTIFYSTMT since).
const NOTIFY: &str = "'[{]NOTIFY'";

fn census_with((source, statistics): (&str, &str)) -> String {
    CENSUS
        .replace("{STATISTICS}", statistics)
        .replace(
            "pg_catalog.coalesce_name",
            "COALESCE(c.relname, t.typname, q.proname)::pg_catalog.text",
        )
        .replace("{OWN OR DRAWING}", &OWN.replace("'^(", "'^(nextval|setval|"))
        .replace("{OWN}", OWN)
        .replace("{NOTIFY}", NOTIFY)
        .replace("{OF SETTINGS}", OF_SETTINGS)
        .replace(" = ", " OPERATOR(pg_catalog.=) ")
        .replace("{SOURCE}", source)
}

/// A database, wherever it may be.
type Key = (Vec<ServerAddress>, String);

/// The outcome of a look.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Answered,
    /// The server has given an unexpected answer.
    Refused,
    /// No server has answered.
    Unanswered,
}

/// What is known of a database's functions.
#[derive(Default)]
struct Known {
    /// When the last look ended, and how.
    looked: Option<(Instant, Outcome)>,
    fingerprint: Vec<u8>,
    /// Queries of all pools of the database when the last look began.
    queries: u64,
    census: Option<Arc<Census>>,
    /// Too much source has been logged.
    said: bool,
    /// An unexpected answer of the server has been logged.
    failure_said: bool,
}

/// What is known of the functions of all databases.
pub struct Censuses {
    shared: Arc<Shared>,
    pools: Arc<Pools>,
    enquiries: Arc<Enquiries>,
    known: Mutex<HashMap<Key, Arc<Place>>>,
    /// What the slowest look since the last pause took, in milliseconds.
    slowest_ms: AtomicU64,
}

/// What is known of one database's.
#[derive(Default)]
struct Place {
    known: AsyncMutex<Known>,
    /// A client has waited for it without success: none waits again before a look has ended.
    unanswered: AtomicBool,
}

impl Known {
    /// Whether another look would show nothing new to a client that has asked since `since`.
    fn is_fresh(&self, since: Instant) -> bool {
        self.looked.is_some_and(|(at, outcome)| match outcome {
            Outcome::Answered => at.elapsed() < PAUSE_MIN / 2,
            Outcome::Unanswered if self.census.is_none() => at >= since,
            Outcome::Refused | Outcome::Unanswered => at.elapsed() < RETRY,
        })
    }
}

/// The pause before the next look, after one that took so long.
fn pause_after(slowest: Duration) -> Duration {
    WINDOW.saturating_sub(slowest).clamp(PAUSE_MIN, PAUSE_MAX)
}

fn key_of(route: &Route) -> Key {
    (route.target.servers.clone(), route.login.database.clone())
}

impl Censuses {
    /// Nothing yet.
    pub fn new(shared: Arc<Shared>, pools: Arc<Pools>, enquiries: Arc<Enquiries>) -> Self {
        Self { shared, pools, enquiries, known: Mutex::default(), slowest_ms: AtomicU64::new(0) }
    }

    fn of(&self, key: &Key) -> Arc<Place> {
        locked(&self.known).entry(key.clone()).or_default().clone()
    }

    /// Forgets those of databases without a pool.
    fn retain(&self, wanted: impl Fn(&Key) -> bool) {
        locked(&self.known).retain(|key, _| wanted(key));
    }
}

fn is_for(entry: &PoolEntry) -> bool {
    entry.key.replication.is_none() && entry.pool.settings().function_census
}

impl Censuses {
    /// Whether its servers may be asked: nothing is sent to those of a paused database.
    fn may_ask(&self, entry: &PoolEntry) -> bool {
        is_for(entry) && !self.shared.gates.is_paused(&entry.key.database)
    }

    /// Waits until the functions of a new client's database are known, or for [`WAIT`]; or for [`WAIT_AGAIN`] where they
    /// have not been looked at since the database was last in use. A server that could not be asked is asked again.
    pub async fn wait(self: &Arc<Self>, entry: &Arc<PoolEntry>) {
        if !self.may_ask(entry) {
            return;
        }
        let is_old = || functions_of(entry).is_older_than(2 * WINDOW, self.shared.loops.now());
        let is_known = entry.pool.knows_functions();
        if is_known && !is_old() {
            return; // as at nearly every login
        }
        let place = self.of(&key_of(&entry.route.load()));
        if place.unanswered.load(Ordering::Relaxed) {
            return; // `refresh` looks again
        }
        let (censuses, entry) = (self.clone(), entry.clone());
        // It continues if this client stops waiting: the next one would start again.
        let looking = tokio::spawn(async move { censuses.look(&entry).await });
        if timeout(if is_known { WAIT_AGAIN } else { WAIT }, looking).await.is_err() {
            place.unanswered.store(true, Ordering::Relaxed);
        }
    }

    /// Renews outdated censuses until the process ends.
    pub async fn run(self: Arc<Self>) {
        while self.shared.phase() != Phase::Ending {
            self.refresh();
            let slowest = Duration::from_millis(self.slowest_ms.swap(0, Ordering::Relaxed));
            sleep(pause_after(slowest)).await;
        }
    }

    /// A statement of this pool may have changed what functions do.
    pub fn look_at_once(self: &Arc<Self>, pool: PoolId) {
        let Some(entry) = self.pools.by_id(pool) else { return };
        if functions_of(&entry).expects_others() && self.may_ask(&entry) {
            let censuses = self.clone();
            tokio::spawn(async move { censuses.look(&entry).await });
        }
    }

    /// Renews outdated censuses.
    fn refresh(self: &Arc<Self>) {
        if self.shared.phase() != Phase::Serving {
            return;
        }
        let entries: Vec<_> = self
            .pools
            .all()
            .into_iter()
            .map(|entry| (key_of(&entry.route.load()), entry))
            .collect();
        let mut queries: HashMap<&Key, u64> = HashMap::new();
        for (key, entry) in &entries {
            *queries.entry(key).or_default() += queries_of(entry);
        }
        self.retain(|key| queries.contains_key(key));
        let is_paused = |entry: &PoolEntry| self.shared.gates.is_paused(&entry.key.database);
        let may_be_used: HashSet<_> =
            entries.iter().filter(|(_, entry)| !is_paused(entry)).map(|(key, _)| key).collect();
        let mut looking = HashSet::new();
        for (key, entry) in &entries {
            if !may_be_used.contains(key) {
                // A pause is what migrations wait for: their changes count from the first text after it on.
                functions_of(entry).forget();
                continue;
            }
            // One look serves all pools of a database.
            if looking.contains(key) || !self.may_ask(entry) || entry.client_count() == 0 {
                continue;
            }
            let queries = queries.get(key).copied().unwrap_or_default();
            let expected = functions_of(entry).expects_others();
            let unseen = entry.pool.census().is_some_and(|census| census.has_unseen());
            let place = self.of(key);
            // A look under way holds the lock.
            let due = place.known.try_lock().is_ok_and(|mut known| {
                let failed = known.looked.is_some_and(|(_, outcome)| outcome != Outcome::Answered);
                let is_used = failed || known.queries != queries;
                let due = expected || unseen || is_used && !known.is_fresh(Instant::now());
                if due {
                    known.queries = queries;
                }
                due
            });
            if due {
                looking.insert(key);
                let (censuses, entry) = (self.clone(), entry.clone());
                tokio::spawn(async move { censuses.look(&entry).await });
            }
        }
    }

    /// Takes the census of a pool's database if it may have changed.
    async fn look(&self, entry: &Arc<PoolEntry>) {
        let route = entry.route.load_full();
        let place = self.of(&key_of(&route));
        let since = Instant::now();
        let mut known = place.known.lock().await;
        let functions = functions_of(entry);
        let look = functions.begin_look();
        let before = functions.census();
        let unseen = before.as_ref().is_some_and(|census| census.has_unseen());
        if !(look.was_due || unseen) && known.is_fresh(since) {
            // The pools may be new ones of the database.
            if let (None, Some(census)) = (&before, &known.census) {
                functions.learn(&look, census);
            }
            return;
        }
        let parameters = entry.pool.parameters();
        let unseen = before.as_ref().map(|census| census.take_unseen()).unwrap_or_default();
        let taken = self.take(&route, parameters, unseen, &mut known).await;
        let outcome = match &taken {
            Ok(()) => Outcome::Answered,
            Err(DialError::Talk {
                source: TalkError::Server(_) | TalkError::Protocol(_), ..
            }) => Outcome::Refused,
            Err(_) => Outcome::Unanswered,
        };
        if outcome == Outcome::Answered {
            let took_ms = u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX);
            self.slowest_ms.fetch_max(took_ms, Ordering::Relaxed);
        }
        known.looked = Some((Instant::now(), outcome));
        functions.looked(self.shared.loops.now());
        if outcome != Outcome::Unanswered {
            place.unanswered.store(false, Ordering::Relaxed);
        }
        let failed = taken.is_err();
        let grows_old = taken.as_ref().is_err_and(is_unanswered_by_a_server_in_use);
        // Without a census of before, and a server that answers others (or the log has that already), too.
        if let Err(error) = &taken
            && (outcome == Outcome::Refused || before.is_none())
            && !error.is_no_such_database()
            && !std::mem::replace(&mut known.failure_said, true)
        {
            tracing::warn!(
                database = entry.key.database,
                %error,
                "the functions of a database could not be read: until they can be, each server connection of its pools \
                 is closed after a transaction, because functions may have changed its session; if none does, set \
                 function_census = false"
            );
        } else if let Err(error) = taken {
            tracing::debug!(database = entry.key.database, %error, "the functions of a database could not be read");
        }
        if failed {
            if grows_old {
                functions.forget();
                known.census = None; // nor do other pools of the database get it
            }
            return;
        }
        let Some(census) = &known.census else {
            if known.said {
                functions.forget(); // what was known before the source became too much
            }
            return;
        };
        if functions.learn(&look, census) {
            tracing::debug!(
                database = entry.key.database,
                words = census.len(),
                plans_read = ?census.plans_read(),
                "what the functions of a database do to sessions"
            );
            // Here, because it takes a moment, and event loops need not wait for it then.
            for pool in self.pools.all() {
                pool.pool.adopt_census();
            }
        }
    }

    async fn take(
        &self,
        route: &Route,
        parameters: Option<Arc<ServerParameters>>,
        unseen: HashSet<Box<[u8]>>,
        known: &mut Known,
    ) -> Result<(), DialError> {
        // Worth the place of an idle server connection, as without it functions would have unknown effects. (Where
        // limits are reached, they stay so.)
        let patience = PLACE_WAIT;
        let answer = self.enquiries.ask_catalogs(route, patience, &FINGERPRINT).await?;
        let [row] = answer.rows.as_slice() else { return Ok(()) };
        let value = |at: usize| row.get(at).and_then(Option::as_deref).unwrap_or_default();
        if let Some(census) = &known.census
            && known.fingerprint == value(0)
        {
            if !unseen.is_empty() {
                known.census = Some(Arc::new(census.without(unseen)));
            }
            return Ok(());
        }
        let fingerprint = value(0).to_vec();
        let bytes =
            std::str::from_utf8(value(1)).ok().and_then(|text| text.parse().ok()).unwrap_or(0);
        if bytes > SOURCES_BYTES_MAX {
            known.census = None;
            if !std::mem::replace(&mut known.said, true) {
                tracing::warn!(
                    database = route.login.database,
                    source_bytes = bytes,
                    "its functions have too much source, and are not inspected: each server connection of its pools is \
                     closed after a transaction, for what functions have left in it; if none of them changes a \
                     session, set function_census = false"
                );
            }
            return Ok(());
        }
        let ask = async |version| {
            self.enquiries.ask_catalogs(route, patience, &census_with(version)).await
        };
        let answer = match ask(BY_VERSION[0]).await {
            Err(DialError::Talk { source: TalkError::Server(_), .. }) => ask(BY_VERSION[1]).await?,
            answer => answer?,
        };
        // Reading much source takes a moment.
        let read = tokio::task::spawn_blocking(move || read(&answer, parameters.as_deref())).await;
        if let Ok(census) = read {
            let census = census.without(unseen);
            known.census = Some(Arc::new(match &known.census {
                Some(before) => census.remembering(before),
                None => census,
            }));
            known.fingerprint = fingerprint;
        }
        Ok(())
    }
}

/// Whether clients are served meanwhile, so that what is known may change unseen: there is no room for the question,
/// or it fails. (A server that is gone, or cannot be reached, serves none.)
fn is_unanswered_by_a_server_in_use(error: &DialError) -> bool {
    match error {
        DialError::Talk { source: TalkError::Server(said), .. } => said.severity == Severity::Error,
        error => error.is_without_room(),
    }
}

fn functions_of(entry: &PoolEntry) -> &KnownFunctions {
    &entry.pool.database_known().functions
}

fn queries_of(entry: &PoolEntry) -> u64 {
    entry.pool.stats.sum(|stats| stats.queries.get())
}

/// Reads the answer to [`CENSUS`]; of a server that reports these.
fn read(answer: &Answer, parameters: Option<&ServerParameters>) -> Census {
    let (mut functions, mut links) = (Vec::new(), Vec::new());
    let (mut servers, mut own) = (Names::with_hasher(Keyed(random_u64())), Vec::new());
    for row in &answer.rows {
        let value = |at: usize| row.get(at).and_then(Option::as_deref).unwrap_or_default();
        let link = match value(0) {
            b"function" => {
                functions.push(Function {
                    name: value(1).into(),
                    language: match value(2) {
                        b"sql" => Language::Sql,
                        b"plpgsql" => Language::PlPgSql,
                        b"c" | b"internal" => Language::Compiled,
                        _ => Language::Other,
                    },
                    immutable: value(3) == b"i",
                    source: value(4).into(),
                });
                continue;
            }
            kind @ (b"any" | b"any write") => {
                functions.push(Function {
                    name: if kind == b"any" { ANY_TEXT } else { ANY_WRITE }.into(),
                    language: Language::Sql,
                    immutable: false,
                    source: value(4).into(),
                });
                continue;
            }
            b"name" if value(2) == b"true" => {
                own.push(value(1).into());
                continue;
            }
            b"name" => {
                servers.insert(value(1).to_ascii_lowercase().into());
                continue;
            }
            b"calls" => Link::Calls,
            b"write calls" => Link::WriteCalls,
            b"write writes" => Link::WriteWrites,
            _ => Link::StandsFor,
        };
        links.push((value(1).into(), link, value(2).into()));
    }
    let reported =
        |name: &[u8]| is_reported(name) || parameters.is_some_and(|own| own.get(name).is_some());
    Census::take(&functions, &links, reported, random_u64())
        .with_names(shared_names(servers), own.into_iter())
}

/// The same names of the server itself are kept once.
fn shared_names(names: Names) -> Arc<Names> {
    static LAST: Mutex<Option<Arc<Names>>> = Mutex::new(None);
    let mut last = locked(&LAST);
    match &*last {
        Some(last) if **last == names => last.clone(),
        _ => last.insert(Arc::new(names)).clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_and_the_look_share_the_window() {
        for took_ms in [0, 5, 200, 500, 750] {
            let took = Duration::from_millis(took_ms);
            assert!(pause_after(took) + took <= WINDOW, "{took_ms} ms");
        }
        assert_eq!(pause_after(Duration::from_secs(5)), PAUSE_MIN);
    }
}
