//! What a client does in one transaction.
//!
//! A workload is a choice of scripts, a script a list of statements, and a statement is sent in one
//! of the protocol's three ways. All wait for each statement's answer before the next.

use clap::ValueEnum;

use crate::wire;

/// Accounts, tellers and branches in one unit of pgbench's scale.
const ACCOUNTS: i64 = 100_000;
const TELLERS: i64 = 10;

/// Which transactions clients run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Workload {
    /// pgbench's `-S`: one account by its key.
    Select,
    /// Few rows that all clients want: reads of one, and one update in `--update-percent`.
    Contention,
    /// pgbench's default: seven statements in one transaction.
    Tpcb,
    /// pgbench's `-N`: the same without the updates of tellers and branches, for whose rows clients wait.
    SimpleUpdate,
}

/// How a statement is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Protocol {
    /// One Query message, values in the text.
    Simple,
    /// Parse, Bind, Describe, Execute, Sync each time.
    Extended,
    /// Parse once; then Bind, Describe, Execute, Sync.
    Prepared,
}

/// A value that each transaction draws again.
#[derive(Clone, Copy)]
enum Variable {
    Account,
    Branch,
    Teller,
    Delta,
    FewRow,
}
const VARIABLES: usize = 5;

/// The values of one transaction.
#[derive(Clone, Copy, Default)]
pub(crate) struct Values([i64; VARIABLES]);

/// One statement of a script.
struct Statement {
    /// The text around the values; one piece more than there are variables.
    pieces: Vec<&'static str>,
    variables: Vec<Variable>,
    /// The text with $1, $2 ... in it.
    parameterised: String,
    /// Its name as a prepared statement.
    name: String,
}

impl Statement {
    /// `text` holds a `?` for each variable.
    fn new(name: String, text: &'static str, variables: &[Variable]) -> Self {
        let pieces: Vec<_> = text.split('?').collect();
        debug_assert_eq!(pieces.len(), variables.len() + 1, "{text}");
        let mut parameterised = String::new();
        for (number, piece) in pieces.iter().enumerate() {
            if number > 0 {
                parameterised.push_str(&format!("${number}"));
            }
            parameterised.push_str(piece);
        }
        Self { pieces, variables: variables.to_vec(), parameterised, name }
    }
}

/// The scripts of a workload and how often each is taken.
pub(crate) struct Scripts {
    protocol: Protocol,
    scripts: Vec<Vec<Statement>>,
    /// How many of 100 transactions take the second script.
    second_percent: u64,
    /// How many scripts are selects that differ in a comment, taken equally often.
    selects: usize,
    scale: i64,
    few_rows: i64,
}

/// Which script a client is in.
#[derive(Clone, Copy, Default)]
pub(crate) struct ScriptId(usize);

impl Scripts {
    /// `scale` is pgbench's; `few_rows` and `update_percent` are those of the contention. There are
    /// `statements` selects, which differ in a comment.
    pub(crate) fn new(
        workload: Workload,
        protocol: Protocol,
        scale: i64,
        few_rows: i64,
        update_percent: u64,
        statements: usize,
    ) -> Self {
        use Variable::{Account, Branch, Delta, FewRow, Teller};
        type Text = (&'static str, &'static [Variable]);
        const BEGIN: Text = ("BEGIN", &[]);
        const END: Text = ("END", &[]);
        const SELECT_ACCOUNT: Text =
            ("SELECT abalance FROM pgbench_accounts WHERE aid = ?", &[Account]);
        const UPDATE_ACCOUNT: Text = (
            "UPDATE pgbench_accounts SET abalance = abalance + ? WHERE aid = ?",
            &[Delta, Account],
        );
        const INSERT_HISTORY: Text = (
            "INSERT INTO pgbench_history (tid, bid, aid, delta, mtime) \
             VALUES (?, ?, ?, ?, CURRENT_TIMESTAMP)",
            &[Teller, Branch, Account, Delta],
        );
        let texts: &[&[Text]] = match workload {
            Workload::Select => &[&[SELECT_ACCOUNT]],
            Workload::Contention => &[
                &[("SELECT value FROM bench_few WHERE id = ?", &[FewRow])],
                &[("UPDATE bench_few SET value = value + 1 WHERE id = ?", &[FewRow])],
            ],
            Workload::Tpcb => &[&[
                BEGIN,
                UPDATE_ACCOUNT,
                SELECT_ACCOUNT,
                (
                    "UPDATE pgbench_tellers SET tbalance = tbalance + ? WHERE tid = ?",
                    &[Delta, Teller],
                ),
                (
                    "UPDATE pgbench_branches SET bbalance = bbalance + ? WHERE bid = ?",
                    &[Delta, Branch],
                ),
                INSERT_HISTORY,
                END,
            ]],
            Workload::SimpleUpdate => {
                &[&[BEGIN, UPDATE_ACCOUNT, SELECT_ACCOUNT, INSERT_HISTORY, END]]
            }
        };
        let one = |script: usize| {
            texts[script].iter().enumerate().map(move |(step, &(text, variables))| {
                Statement::new(format!("P{script}_{step}"), text, variables)
            })
        };
        let mut scripts: Vec<Vec<Statement>> =
            (0..texts.len()).map(|script| one(script).collect()).collect();
        if workload == Workload::Select {
            for number in 1..statements {
                let mut copy = one(0).collect::<Vec<_>>();
                for statement in &mut copy {
                    statement.name = format!("P0_0_{number}");
                    statement.parameterised.push_str(&format!(" /* {number} */"));
                }
                scripts.push(copy);
            }
        }
        let second_percent = if workload == Workload::Contention { update_percent } else { 0 };
        let selects = if workload == Workload::Select { scripts.len() } else { 1 };
        Self { protocol, scripts, second_percent, selects, scale, few_rows }
    }

    /// Draws the script and the values of a transaction.
    pub(crate) fn draw(&self, random: &mut Random) -> (ScriptId, Values) {
        let script = match self.selects {
            1 => usize::from(random.below(100) < self.second_percent as i64),
            selects => random.below(selects as i64) as usize,
        };
        let values = [
            1 + random.below(ACCOUNTS * self.scale),
            1 + random.below(self.scale),
            1 + random.below(TELLERS * self.scale),
            random.below(10_001) - 5_000,
            1 + random.below(self.few_rows),
        ];
        (ScriptId(script.min(self.scripts.len() - 1)), Values(values))
    }

    /// Statements in a script.
    pub(crate) fn steps(&self, script: ScriptId) -> usize {
        self.scripts[script.0].len()
    }

    /// What a connection sends once, ahead of its first transaction: empty if there is nothing.
    pub(crate) fn prepare(&self, out: &mut Vec<u8>) {
        if self.protocol != Protocol::Prepared {
            return;
        }
        for statement in self.scripts.iter().flatten() {
            wire::parse(out, &statement.name, &statement.parameterised);
        }
        out.extend_from_slice(&wire::SYNC);
    }

    /// Writes statement `step`; the answer to it ends with one ReadyForQuery.
    pub(crate) fn encode(&self, out: &mut Vec<u8>, script: ScriptId, step: usize, values: &Values) {
        let statement = &self.scripts[script.0][step];
        let value = |variable: &Variable| values.0[*variable as usize];
        if self.protocol == Protocol::Simple {
            wire::query(out, |out| {
                for (index, piece) in statement.pieces.iter().enumerate() {
                    if index > 0 {
                        wire::number(out, value(&statement.variables[index - 1]));
                    }
                    out.extend_from_slice(piece.as_bytes());
                }
                out.push(b';');
            });
            return;
        }
        let mut params = [0; VARIABLES];
        let count = statement.variables.len();
        for (param, variable) in params.iter_mut().zip(&statement.variables) {
            *param = value(variable);
        }
        let mut name = "";
        if self.protocol == Protocol::Prepared {
            name = &statement.name;
        } else {
            wire::parse(out, name, &statement.parameterised);
        }
        wire::bind_describe_execute(out, name, &params[..count]);
        out.extend_from_slice(&wire::SYNC);
    }
}

/// A small generator of random numbers (xorshift64*): cheap, and good enough to spread keys.
pub(crate) struct Random(u64);

impl Random {
    /// The same seed gives the same numbers.
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// A number from 0 to `bound` - 1; 0 if the bound is not positive.
    pub(crate) fn below(&mut self, bound: i64) -> i64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let high = self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 32;
        ((i128::from(high) * i128::from(bound.max(0))) >> 32) as i64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_percent_of_the_contention_are_updates() {
        let scripts = Scripts::new(Workload::Contention, Protocol::Simple, 1, 10, 1, 1);
        let mut random = Random::new(7);
        let updates = (0..100_000).filter(|_| scripts.draw(&mut random).0.0 == 1).count();
        assert!((800..1200).contains(&updates), "{updates} of 100000");
    }

    #[test]
    fn values_stay_in_their_tables() {
        let scripts = Scripts::new(Workload::Tpcb, Protocol::Simple, 3, 10, 1, 1);
        let mut random = Random::new(1);
        let mut accounts = (i64::MAX, 0);
        for _ in 0..100_000 {
            let (_, Values([account, branch, teller, delta, few])) = scripts.draw(&mut random);
            accounts = (accounts.0.min(account), accounts.1.max(account));
            assert!((1..=3).contains(&branch) && (1..=30).contains(&teller));
            assert!((-5000..=5000).contains(&delta) && (1..=10).contains(&few));
        }
        assert!(accounts.0 >= 1 && accounts.0 < 1000, "{accounts:?}");
        assert!(accounts.1 <= 300_000 && accounts.1 > 299_000, "{accounts:?}");
    }

    #[test]
    fn statements_that_differ_in_a_comment_are_drawn_equally_often() {
        let scripts = Scripts::new(Workload::Select, Protocol::Prepared, 1, 1, 0, 10);
        let mut random = Random::new(3);
        let mut drawn = [0; 10];
        for _ in 0..10_000 {
            drawn[scripts.draw(&mut random).0.0] += 1;
        }
        assert!(drawn.iter().all(|count| (800..1200).contains(count)), "{drawn:?}");
        let texts: std::collections::BTreeSet<&str> =
            scripts.scripts.iter().flatten().map(|one| one.parameterised.as_str()).collect();
        assert_eq!(texts.len(), 10);
    }

    #[test]
    fn a_simple_query_holds_its_values() {
        let scripts = Scripts::new(Workload::Select, Protocol::Simple, 1, 1, 0, 1);
        let mut out = Vec::new();
        scripts.encode(&mut out, ScriptId(0), 0, &Values([42, 0, 0, 0, 0]));
        assert_eq!(&out[5..], b"SELECT abalance FROM pgbench_accounts WHERE aid = 42;\0");
    }
}
