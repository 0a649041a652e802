//! Draws statements: mostly such as work where the session stands, some that fail.

use crate::model::backend::ModelBackend;
use crate::model::catalog;
use crate::model::session::Block;
use crate::rng::Rng;

/// What a client does, by weight; 0 is never.
#[derive(Debug, Clone)]
pub struct Mix {
    /// Answers that name the client: crossed ones show.
    pub tokens: u32,
    /// Results of many rows.
    pub series: u32,
    /// INSERT, UPDATE, DELETE and sums on the client's own table.
    pub writes: u32,
    /// BEGIN, COMMIT, ROLLBACK and savepoints.
    pub transactions: u32,
    /// SET, RESET, SHOW and their functions.
    pub settings: u32,
    /// Custom settings (`my.x`), which a server never forgets.
    pub custom_settings: u32,
    /// SET ROLE.
    pub roles: u32,
    /// Literals and names that mean what the settings say.
    pub folded: u32,
    /// Temporary tables.
    pub temporary: u32,
    /// nextval, and what `sequence_reads_percent` adds.
    pub sequences: u32,
    /// How many of a hundred statements on sequences ask for currval or lastval.
    pub sequence_reads_percent: u64,
    /// Rows of the longest result.
    pub series_rows_max: u64,
    /// Session advisory locks.
    pub locks: u32,
    /// Settings, temporary tables and locks of functions, of which their calls show nothing.
    pub hidden: u32,
    /// LISTEN, UNLISTEN, NOTIFY.
    pub notifications: u32,
    /// PREPARE, EXECUTE, DEALLOCATE.
    pub sql_prepared: u32,
    /// What is not for a pooler is left out.
    pub poolable: bool,
    /// DECLARE, FETCH, CLOSE.
    pub cursors: u32,
    /// DISCARD, RESET ALL.
    pub discards: u32,
    /// Statements that fail.
    pub errors: u32,
    /// COPY in both directions.
    pub copies: u32,
    /// pg_sleep, sometimes cancelled.
    pub sleeps: u32,
}

impl Mix {
    /// All that the model knows.
    #[must_use]
    pub fn everything() -> Self {
        Self {
            tokens: 20,
            series: 6,
            writes: 12,
            transactions: 16,
            settings: 10,
            custom_settings: 5,
            roles: 2,
            folded: 8,
            temporary: 6,
            sequences: 6,
            sequence_reads_percent: 43,
            series_rows_max: 60,
            locks: 4,
            hidden: 0,
            notifications: 6,
            sql_prepared: 6,
            poolable: false,
            cursors: 5,
            discards: 3,
            errors: 6,
            copies: 5,
            sleeps: 1,
        }
    }

    fn weights(&self) -> [u32; 19] {
        [
            self.tokens,
            self.series,
            self.writes,
            self.transactions,
            self.settings,
            self.custom_settings,
            self.roles,
            self.folded,
            self.temporary,
            self.sequences,
            self.locks,
            self.notifications,
            self.sql_prepared,
            self.cursors,
            self.discards,
            self.errors,
            self.copies,
            self.hidden,
            self.sleeps,
        ]
    }
}

/// Settings with values that are valid, and one that is not.
const SETTINGS: [(&str, &[&str]); 12] = [
    ("application_name", &["'app one'", "'app two'", "''"]),
    ("client_encoding", &["'UTF8'", "LATIN1", "bogus"]),
    ("DateStyle", &["'ISO, DMY'", "ISO, MDY", "dmy", "'German'", "bogus"]),
    ("IntervalStyle", &["postgres", "sql_standard", "ISO_8601", "bogus"]),
    ("TimeZone", &["'Asia/Tokyo'", "'America/New_York'", "utc", "'asia/kolkata'", "'No/Where'"]),
    ("standard_conforming_strings", &["off", "on", "maybe"]),
    ("search_path", &["s1, public", "s2, s1, public", "s3, public", "public", "\"$user\", public"]),
    ("statement_timeout", &["'90s'", "120000", "0", "'soon'"]),
    ("lock_timeout", &["'70s'", "0"]),
    ("work_mem", &["'8MB'", "65536", "'much'"]),
    ("enable_seqscan", &["off", "true", "perhaps"]),
    ("default_transaction_read_only", &["on", "off", "off"]),
];

const CUSTOM: [&str; 3] = ["my.user_id", "my.tenant", "app.x"];

/// Draws one session's statements.
#[derive(Debug)]
pub(super) struct Statements {
    pub(super) rng: Rng,
    pub(super) mix: Mix,
    /// The client's own table, sequence, channels and locks bear this number.
    pub(super) slot: usize,
    /// How many answers were asked for, to tell them apart.
    pub(super) count: u64,
}

impl Statements {
    /// A statement for a Query.
    pub(super) fn simple(&mut self, session: &ModelBackend) -> String {
        // In a failed transaction little but its end is useful.
        if session.block() == Block::Failed && self.rng.percent(60) {
            return self.transaction(session);
        }
        match self.rng.weighted(&self.mix.weights()) {
            0 => self.token(),
            1 => self.series(),
            2 => self.write(),
            3 => self.transaction(session),
            4 => self.setting(),
            5 => self.custom_setting(),
            6 => self.role(),
            7 => self.folded(),
            8 => self.temporary(session),
            9 => self.sequence(),
            10 => self.lock(),
            11 => self.notification(),
            12 => self.prepared(session),
            13 => self.cursor(session),
            14 => self.discard(),
            15 => self.error(),
            16 => self.copy(),
            17 => self.hidden(),
            _ => "SELECT pg_sleep(0.05)".to_owned(),
        }
    }

    /// A statement for a Parse: the same, less what Parse itself answers differently by what
    /// exists at that moment.
    pub(super) fn extended(&mut self, session: &ModelBackend) -> String {
        if self.rng.percent(45) {
            return self.with_parameters();
        }
        loop {
            let text = self.simple(session);
            let dynamic = ["EXECUTE", "FETCH", "DECLARE", "CLOSE", "PREPARE", "DEALLOCATE"];
            if !dynamic.iter().any(|word| text.starts_with(word)) {
                return text;
            }
        }
    }

    /// Several statements in one text.
    pub(super) fn several(&mut self, count: u64, session: &ModelBackend) -> String {
        let mut texts: Vec<String> = Vec::new();
        while texts.len() < usize::try_from(count).unwrap_or(1) {
            let text = self.simple(session);
            // After the end of a failed transaction in the same text, nothing can be prepared in
            // advance.
            let names =
                ["EXECUTE", "DEALLOCATE", "PREPARE"].iter().any(|word| text.starts_with(word));
            // A notification between leaving a channel and listening to it again in the same text
            // arrives.
            let has = |word| texts.iter().any(|text| text.starts_with(word));
            let leaves = session.unlistens() || has("UNLISTEN");
            let again = text.starts_with("LISTEN") && leaves && has("COMMIT");
            let failed = names && session.block() == Block::Failed;
            if !(self.mix.poolable && (failed || again)) {
                texts.push(text);
            }
        }
        texts.join("; ")
    }

    fn token(&mut self) -> String {
        self.count += 1;
        format!("SELECT 'c{}-{}'", self.slot, self.count)
    }

    fn with_parameters(&mut self) -> String {
        self.count += 1;
        let (slot, count) = (self.slot, self.count);
        let mut texts = vec![
            "SELECT $1".to_owned(),
            "SELECT $1::int4".to_owned(),
            "SELECT $1::int8, $2".to_owned(),
            format!("SELECT 'c{slot}-{count}', $1"),
            "SELECT lpad(g::text, 30, '.') FROM generate_series(1, $1) g".to_owned(),
        ];
        if self.mix.writes > 0 {
            texts.push(format!("INSERT INTO {} VALUES ($1)", catalog::ledger(slot)));
            texts.push(format!("INSERT INTO {} VALUES ($1) RETURNING v", catalog::ledger(slot)));
        }
        if self.mix.custom_settings > 0 {
            texts.push("SELECT set_config('my.tenant', $1, false)".to_owned());
        }
        self.rng.pick(&texts).clone()
    }

    fn series(&mut self) -> String {
        let (width, rows) =
            (self.rng.between(1, 120), self.rng.between(0, self.mix.series_rows_max));
        if self.rng.percent(20) {
            let fails_at = self.rng.between(1, 12);
            return format!("SELECT 10/({fails_at} - g) FROM generate_series(1, 8) g");
        }
        format!("SELECT lpad(g::text, {width}, '.') FROM generate_series(1, {rows}) g")
    }

    fn write(&mut self) -> String {
        let ledger = catalog::ledger(self.slot);
        match self.rng.below(10) {
            0..=4 => format!("INSERT INTO {ledger} VALUES ({})", self.rng.below(1000)),
            5 => format!("INSERT INTO {ledger} VALUES ({}) RETURNING v", self.rng.below(1000)),
            6 => format!("UPDATE {ledger} SET v = v + {}", self.rng.below(10)),
            7 if self.rng.percent(30) => format!("DELETE FROM {ledger}"),
            _ => format!("SELECT count(*), sum(v) FROM {ledger}"),
        }
    }

    fn transaction(&mut self, session: &ModelBackend) -> String {
        let savepoint = format!("sp{}", self.rng.below(3));
        let open = session.savepoints();
        let known = if open.is_empty() || self.rng.percent(5) {
            savepoint.clone()
        } else {
            self.rng.pick(&open).clone()
        };
        let choice = match session.block() {
            Block::Explicit => self.rng.weighted(&[1, 6, 4, 8, 6, 4]),
            Block::Failed => self.rng.weighted(&[0, 3, 4, 1, 8, 1]),
            _ => self.rng.weighted(&[30, 1, 1, 1, 1, 1]),
        };
        match choice {
            0 => (*self.rng.pick(&["BEGIN", "START TRANSACTION", "BEGIN READ ONLY", "BEGIN"]))
                .to_owned(),
            1 => "COMMIT".to_owned(),
            2 => "ROLLBACK".to_owned(),
            3 => format!("SAVEPOINT {savepoint}"),
            4 => format!("ROLLBACK TO {known}"),
            _ => format!("RELEASE {known}"),
        }
    }

    fn setting(&mut self) -> String {
        let (name, values) = *self.rng.pick(&SETTINGS);
        let value = *self.rng.pick(values);
        match self.rng.below(12) {
            0..=4 => format!("SET {name} TO {value}"),
            5 | 6 => format!("SET LOCAL {name} = {value}"),
            7 => format!("RESET {name}"),
            8 => format!("SET {name} TO DEFAULT"),
            9 if name == "TimeZone" => format!("SET TIME ZONE {value}"),
            9 => format!("SELECT current_setting('{name}')"),
            10 if value.starts_with('\'') => {
                let local = self.rng.percent(30);
                format!("SELECT set_config('{name}', {value}, {local})")
            }
            _ => format!("SHOW {name}"),
        }
    }

    fn custom_setting(&mut self) -> String {
        let name = *self.rng.pick(&CUSTOM);
        self.count += 1;
        let value = format!("c{}-{}", self.slot, self.count);
        match self.rng.below(8) {
            0 | 1 => format!("SET {name} = '{value}'"),
            2 => format!("SET LOCAL {name} = '{value}'"),
            3 => format!("RESET {name}"),
            4 => format!("SELECT set_config('{name}', '{value}', false)"),
            5 => format!("SHOW {name}"),
            _ => format!("SELECT current_setting('{name}', true)"),
        }
    }

    fn role(&mut self) -> String {
        let texts = [
            "SET ROLE reader",
            "SET LOCAL ROLE writer",
            "SET ROLE none",
            "RESET ROLE",
            "SET ROLE stranger",
            "SET ROLE nobody_at_all",
            "SET SESSION AUTHORIZATION DEFAULT",
            "SET SESSION AUTHORIZATION stranger",
            "SHOW role",
            "SELECT current_user",
        ];
        (*self.rng.pick(&texts)).to_owned()
    }

    fn folded(&mut self) -> String {
        let texts = [
            "SELECT extract(epoch from '2024-06-01 12:00:00'::timestamptz)::int8",
            "SELECT '01/02/2024'::date - '2024-01-01'::date",
            "SELECT extract(epoch from '-1 02:00:00'::interval)::int8",
            "SELECT v FROM probe",
            "SELECT 'a\\tb'",
        ];
        (*self.rng.pick(&texts)).to_owned()
    }

    fn temporary(&mut self, session: &ModelBackend) -> String {
        let name = match session.temporary_tables().as_slice() {
            some if !some.is_empty() && self.rng.percent(80) => self.rng.pick(some).clone(),
            _ => format!("temp_{}", self.rng.below(3)),
        };
        match self.rng.below(8) {
            0 | 1 => format!("CREATE TEMP TABLE temp_{} (v int)", self.rng.below(3)),
            2 => format!("CREATE TEMP TABLE temp_{} (v int) ON COMMIT DROP", self.rng.below(3)),
            3 | 4 => format!("INSERT INTO {name} VALUES ({})", self.rng.below(100)),
            5 => format!("DROP TABLE {name}"),
            6 => "DISCARD TEMP".to_owned(),
            _ => format!("SELECT count(*), sum(v) FROM {name}"),
        }
    }

    fn sequence(&mut self) -> String {
        let own = catalog::sequence(self.slot);
        if self.rng.percent(self.mix.sequence_reads_percent) {
            let reads = ["SELECT lastval()".to_owned(), format!("SELECT currval('{own}')")];
            return self.rng.pick(&reads).clone();
        }
        match self.rng.below(4) {
            0..=2 => format!("SELECT nextval('{own}')"),
            _ => "DISCARD SEQUENCES".to_owned(),
        }
    }

    fn lock(&mut self) -> String {
        let key = self.slot as u64 * 10 + self.rng.below(2);
        match self.rng.below(6) {
            0 | 1 => format!("SELECT pg_advisory_lock({key})"),
            2 => format!("SELECT pg_try_advisory_lock({key})"),
            3 | 4 => format!("SELECT pg_advisory_unlock({key})"),
            _ => "SELECT pg_advisory_unlock_all()".to_owned(),
        }
    }

    fn hidden(&mut self) -> String {
        let key = self.slot as u64 * 10 + self.rng.below(2);
        self.count += 1;
        match self.rng.below(10) {
            0..=2 => {
                let name = *self.rng.pick(&CUSTOM);
                format!("SELECT hides_setting('{name}', 'h{}-{}')", self.slot, self.count)
            }
            3..=4 => {
                let settings = [
                    ("work_mem", "16MB"),
                    ("search_path", "s2, public"),
                    ("statement_timeout", "80s"),
                    ("TimeZone", "Asia/Tokyo"),
                    ("enable_seqscan", "off"),
                ];
                let (name, value) = *self.rng.pick(&settings);
                format!("SELECT hides_setting('{name}', '{value}')")
            }
            5 => {
                // Not those with which a client may have begun: within the transaction a function's
                // RESET gives the server connection's own value.
                let names = ["work_mem", "enable_seqscan", CUSTOM[0]];
                format!("SELECT hides_reset('{}')", self.rng.pick(&names))
            }
            6 => format!("SELECT hides_lock({key})"),
            7 | 8 => format!("SELECT hides_unlock({key})"),
            _ => format!("SELECT hides_temp('temp_{}')", self.rng.below(3)),
        }
    }

    fn notification(&mut self) -> String {
        let channel = format!("ch_{}_{}", self.slot, self.rng.below(2));
        self.count += 1;
        match self.rng.below(8) {
            0..=2 => format!("LISTEN {channel}"),
            3..=5 => format!("NOTIFY {channel}, 'n{}'", self.count % 3),
            6 => format!("UNLISTEN {channel}"),
            _ => "UNLISTEN *".to_owned(),
        }
    }

    fn prepared(&mut self, session: &ModelBackend) -> String {
        let mut known = session.statements();
        // The protocol's have these, too.
        let prefix = "ps";
        known.retain(|name| name.starts_with(prefix));
        let name = if known.is_empty() || self.rng.percent(10) {
            format!("{prefix}{}", self.rng.below(4))
        } else {
            self.rng.pick(&known).clone()
        };
        match self.rng.below(10) {
            0..=2 => {
                let name = format!("{prefix}{}", self.rng.below(4));
                self.count += 1;
                match self.rng.below(4) {
                    0 => format!(
                        "PREPARE {name}(int) AS INSERT INTO {} VALUES ($1)",
                        catalog::ledger(self.slot)
                    ),
                    1 => format!(
                        "PREPARE {name} AS SELECT extract(epoch from '2024-06-01 12:00:00'::timestamptz)::int8"
                    ),
                    2 => format!("PREPARE {name} AS SELECT v FROM probe"),
                    _ => format!(
                        "PREPARE {name}(text) AS SELECT 'c{}-{}', $1",
                        self.slot, self.count
                    ),
                }
            }
            3..=7 if session.statement(&name).is_some() && !session.is_query(&name) => {
                format!("DEALLOCATE {name}")
            }
            3..=7 => {
                let params = session.statement(&name).map_or(0, |(params, _)| params.len());
                let values: Vec<String> = (0..params).map(|n| (n + 1).to_string()).collect();
                if values.is_empty() {
                    format!("EXECUTE {name}")
                } else {
                    format!("EXECUTE {name}({})", values.join(", "))
                }
            }
            8 => format!("DEALLOCATE {name}"),
            _ => "DEALLOCATE ALL".to_owned(),
        }
    }

    fn cursor(&mut self, session: &ModelBackend) -> String {
        let mut known = session.portals();
        known.retain(|name| name.starts_with("cur"));
        let name = if known.is_empty() || self.rng.percent(10) {
            format!("cur{}", self.rng.below(3))
        } else {
            self.rng.pick(&known).clone()
        };
        match self.rng.below(8) {
            0..=2 => {
                let hold = if self.rng.percent(60) { " WITH HOLD" } else { "" };
                let name = format!("cur{}", self.rng.below(3));
                let rows = self.rng.between(1, 9);
                format!(
                    "DECLARE {name} CURSOR{hold} FOR SELECT lpad(g::text, 5, '.') FROM generate_series(1, {rows}) g"
                )
            }
            3..=5 => format!("FETCH {} FROM {name}", self.rng.between(1, 4)),
            6 => format!("CLOSE {name}"),
            _ => "CLOSE ALL".to_owned(),
        }
    }

    fn discard(&mut self) -> String {
        let texts = ["DISCARD ALL", "DISCARD PLANS", "RESET ALL", "DISCARD ALL", "UNLISTEN *"];
        (*self.rng.pick(&texts)).to_owned()
    }

    fn error(&mut self) -> String {
        let texts = [
            "SELECT 1/0",
            "SELEC 1",
            "SELECT count(*), sum(v) FROM no_such_table",
            "SHOW no_such_setting",
            "SET no_such_setting TO 1",
            "SET",
            "",
            ";",
            "DROP TABLE no_such_table",
        ];
        (*self.rng.pick(&texts)).to_owned()
    }

    fn copy(&mut self) -> String {
        let ledger = catalog::ledger(self.slot);
        if self.rng.percent(60) {
            format!("COPY {ledger} FROM STDIN")
        } else {
            format!("COPY (SELECT v FROM {ledger} ORDER BY v) TO STDOUT")
        }
    }
}
