//! What is compared, over which network, and what is asked of it.

use serde::Serialize;

/// A program's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Case {
    /// COPY of a table to the client.
    CopyOut,
    /// The same for a minute.
    Steady,
    /// A base backup of a pgbench cluster.
    BaseBackup,
    /// COPY of a table to the server.
    CopyIn,
    /// A file from rsync's daemon.
    Rsync,
    /// COPY over two lines, one of which is cut meanwhile.
    Outage,
    /// COPY without a limit.
    Lan,
}

/// How a program speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// The client as it is: one TCP flow.
    Plain,
    /// Both ends under `mptcp run`, set up by `mptcp setup`: the kernel's path manager, five subflows.
    Kernel,
    /// Both ends under `mptcp run` and `mptcp manage`.
    Manage,
}

/// What is measured of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    /// From the client's start to its end.
    Seconds,
    /// Mbit/s at the receiver in the second half.
    Rate,
    /// Seconds until three of them had 71 Mbit/s.
    Reached,
    /// The longest time without a byte, around the cut, in seconds.
    Stall,
    /// From the line's return until 85 % of what went before the cut, in seconds.
    Again,
    /// Seconds of the processor, of both ends, without the manager's.
    Processor,
}

/// What is asked of a measure. The references were measured by others, with all of the work.
#[derive(Clone, Copy, Debug)]
pub struct Goal {
    /// What was measured by others.
    pub reference: &'static str,
    /// What is asked.
    pub required: &'static str,
    /// Whether it is reached, where figures alone can say it.
    pub met: fn(&Figures) -> Option<bool>,
}

/// All runs of a measure.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// Of [`Way::Plain`].
    pub plain: Vec<f64>,
    /// Of [`Way::Kernel`].
    pub kernel: Vec<f64>,
    /// Of [`Way::Manage`].
    pub manage: Vec<f64>,
}

impl Figures {
    /// Those of one way.
    #[must_use]
    pub fn of(&self, way: Way) -> &[f64] {
        match way {
            Way::Plain => &self.plain,
            Way::Kernel => &self.kernel,
            Way::Manage => &self.manage,
        }
    }

    fn times_plain(&self) -> Option<f64> {
        Some(median(&self.plain)? / median(&self.manage)?)
    }
}

/// The one in the middle; of two the mean.
#[must_use]
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().checked_sub(1)?;
    Some(f64::midpoint(sorted[last / 2], sorted[last.div_ceil(2)]))
}

impl Way {
    /// All.
    pub const ALL: [Self; 3] = [Self::Plain, Self::Kernel, Self::Manage];

    /// For people.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            Self::Plain => "plain TCP",
            Self::Kernel => "kernel's path manager",
            Self::Manage => "manage",
        }
    }
}

impl Measure {
    /// What its figures are.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            Self::Seconds => "s",
            Self::Rate => "Mbit/s, second half",
            Self::Reached => "s until 71 Mbit/s",
            Self::Stall => "s longest stall",
            Self::Again => "s until both lines again",
            Self::Processor => "s of the processor",
        }
    }
}

impl Case {
    /// All.
    pub const ALL: [Self; 7] = [
        Self::CopyOut,
        Self::Steady,
        Self::BaseBackup,
        Self::CopyIn,
        Self::Rsync,
        Self::Outage,
        Self::Lan,
    ];

    /// As `--only` has it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::CopyOut => "copy-out",
            Self::Steady => "steady",
            Self::BaseBackup => "basebackup",
            Self::CopyIn => "copy-in",
            Self::Rsync => "rsync",
            Self::Outage => "outage",
            Self::Lan => "lan",
        }
    }

    /// What is done.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            Self::CopyOut => "COPY out of 49.8 MB of rows",
            Self::Steady => "long COPY out",
            Self::BaseBackup => "pg_basebackup of a pgbench -s 5 cluster",
            Self::CopyIn => "COPY in",
            Self::Rsync => "rsync of 100 MB",
            Self::Outage => "COPY over two lines, one cut for 5 s",
            Self::Lan => "COPY of 2.5 GB without a limit",
        }
    }

    /// The network that it is about; `None`: any.
    #[must_use]
    pub fn network(self) -> Option<&'static str> {
        match self {
            Self::Outage => Some("two-isps"),
            Self::Lan => Some("lan"),
            _ => None,
        }
    }

    /// The cases of the report on a description: `per-flow` has the whole table, others what is about
    /// them.
    #[must_use]
    pub fn of(description: &str) -> Vec<Self> {
        let all = Self::ALL.into_iter();
        if description == "per-flow" {
            return all.collect();
        }
        let own: Vec<Self> =
            all.clone().filter(|case| case.network() == Some(description)).collect();
        if own.is_empty() { all.filter(|case| case.network().is_none()).collect() } else { own }
    }

    /// How it is done. A long COPY by the kernel's path manager is the short one's rate.
    #[must_use]
    pub fn ways(self) -> &'static [Way] {
        match self {
            Self::Steady => &[Way::Plain, Way::Manage],
            _ => &Way::ALL,
        }
    }

    /// How many times the table is sent.
    #[must_use]
    pub fn times(self, way: Way) -> u64 {
        match (self, way) {
            (Self::Steady, Way::Manage) => 9,
            (Self::Outage, _) => 4,
            (Self::Lan, _) => 50,
            _ => 1,
        }
    }

    /// What is measured of it.
    #[must_use]
    pub fn measures(self) -> &'static [Measure] {
        match self {
            Self::Steady => &[Measure::Rate, Measure::Reached],
            Self::Outage => &[Measure::Stall, Measure::Again],
            Self::Lan => &[Measure::Seconds, Measure::Processor],
            _ => &[Measure::Seconds],
        }
    }

    /// What is asked.
    #[must_use]
    pub fn goal(self, measure: Measure) -> Goal {
        let five = |figures: &Figures| figures.times_plain().map(|times| times >= 5.0);
        let (reference, required, met): (_, _, fn(&Figures) -> Option<bool>) = match (self, measure)
        {
            (Self::CopyOut, _) => (
                "42.4 s plain; 14.4 s published, 11.1 s measured with 5 flows by hand",
                "no slower than by hand",
                |_| None,
            ),
            (Self::Steady, Measure::Rate) => {
                ("9.4 plain; 75.3 is all", "71 in every run", |figures| {
                    Some(!figures.manage.is_empty() && figures.manage.iter().all(|r| *r >= 71.0))
                })
            }
            (Self::Steady, _) => ("", "20 s in the median", |figures| {
                median(&figures.manage).map(|seconds| seconds <= 20.0)
            }),
            (Self::BaseBackup, _) => (
                "93 s plain; 30.5 s published, 24.4 s measured by hand",
                "at most 1/5 of plain",
                five,
            ),
            (Self::CopyIn | Self::Rsync, _) => ("", "at least 5 x plain", five),
            (Self::Outage, Measure::Stall) => ("dies or stalls", "under 3 s", |figures| {
                Some(!figures.manage.is_empty() && figures.manage.iter().all(|s| *s < 3.0))
            }),
            (Self::Outage, _) => ("", "within 5 s", |figures| {
                Some(!figures.manage.is_empty() && figures.manage.iter().all(|s| *s <= 5.0))
            }),
            (Self::Lan, _) => ("", "within 5 % of plain", |figures| {
                figures.times_plain().map(|times| times >= 1.0 / 1.05)
            }),
        };
        Goal { reference, required, met }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn per_flow_has_the_whole_table_and_others_what_is_about_them() {
        assert_eq!(Case::of("per-flow"), Case::ALL);
        assert_eq!(Case::of("two-isps"), [Case::Outage]);
        assert_eq!(Case::of("lan"), [Case::Lan]);
        assert_eq!(Case::of("my.toml").len(), 5);
    }

    #[test]
    fn five_times_plain_is_met_and_less_is_not() {
        let goal = Case::CopyIn.goal(Measure::Seconds);
        let figures = |manage| Figures { plain: vec![42.5], manage, ..Figures::default() };
        assert_eq!((goal.met)(&figures(vec![8.0, 8.5, 9.0])), Some(true));
        assert_eq!((goal.met)(&figures(vec![8.0, 8.6, 9.0])), Some(false));
        assert_eq!((goal.met)(&figures(vec![])), None);
    }

    #[test]
    fn every_run_counts_where_every_run_is_asked_for() {
        let goal = Case::Steady.goal(Measure::Rate);
        let figures = |manage| Figures { manage, ..Figures::default() };
        assert_eq!((goal.met)(&figures(vec![71.0, 74.0])), Some(true));
        assert_eq!((goal.met)(&figures(vec![70.9, 74.0])), Some(false));
        assert_eq!((goal.met)(&figures(vec![])), Some(false));
        // One that never came to it.
        let goal = Case::Outage.goal(Measure::Again);
        assert_eq!((goal.met)(&figures(vec![1.0, f64::INFINITY])), Some(false));
    }

    #[test]
    fn medians() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0]), Some(2.5));
    }
}
