use core::net::{Ipv4Addr, SocketAddrV4};

use super::*;

fn rule(when: When, does: Does) -> Arc<Rule> {
    let (expires, counts) = (None, Counts::default());
    Arc::new(Rule { name: "r".into(), when, does, expires, counts })
}

fn refuses() -> Does {
    Does { refuses: Some(("no".into(), SqlState::QUERY_CANCELED)), ..Does::default() }
}

fn peer() -> PeerAddress {
    PeerAddress::V4(SocketAddrV4::new(Ipv4Addr::new(10, 1, 2, 3), 1))
}

fn who<'a>(peer: &'a PeerAddress) -> Who<'a> {
    Who { user: "u", database: "d", application_name: b"a", peer }
}

fn network(text: &str, bits: u8) -> Option<Network> {
    Some(Network { address: text.parse().unwrap(), bits })
}

#[test]
fn a_rule_concerns_a_client_by_all_that_it_names() {
    let peer = peer();
    let who = who(&peer);
    let name = |name: &str| Some(name.into());
    for when in [
        When::default(),
        When { user: name("u"), database: name("d"), ..When::default() },
        When { application_name: name("a"), network: network("10.1.0.0", 16), ..When::default() },
        When { network: network("0.0.0.0", 0), ..When::default() },
        When { network: network("10.1.2.3", 32), ..When::default() },
    ] {
        assert!(when.concerns(&who), "{when:?}");
    }
    for when in [
        When { user: name("v"), database: name("d"), ..When::default() },
        When { user: name("u"), database: name("e"), ..When::default() },
        When { application_name: name("A"), ..When::default() },
        When { network: network("10.2.0.0", 16), ..When::default() },
        When { network: network("10.1.2.2", 32), ..When::default() },
        When { network: network("::", 0), ..When::default() },
    ] {
        assert!(!when.concerns(&who), "{when:?}");
    }
    let anywhere = When { network: network("0.0.0.0", 0), ..When::default() };
    assert!(!anywhere.concerns(&Who { peer: &PeerAddress::Unix, ..who }));
}

fn matching(set: &RuleSet, text: &str, now: u64) -> usize {
    set.matching(who(&peer()), &[Text::new(text.as_bytes())], Time::from_micros(now)).count()
}

#[test]
fn a_rule_matches_by_text_and_kind_until_it_expires_and_never_the_end_of_a_block() {
    let is_in = |text: &[u8]| memchr::memmem::find(text, b"big").is_some();
    let text = Some(Pattern { written: "big".into(), is_in: Box::new(is_in) });
    let set = RuleSet::new(vec![
        rule(When { text, kind: Some(Kind::Read), ..When::default() }, refuses()),
        Arc::new(Rule {
            name: "soon".into(),
            when: When::default(),
            does: refuses(),
            expires: Some(Time::from_micros(100)),
            counts: Counts::default(),
        }),
    ]);
    assert_eq!(matching(&set, "select * from big", 99), 2);
    assert_eq!(matching(&set, "select * from big", 100), 1);
    assert_eq!(matching(&set, "delete from big", 100), 0);
    assert_eq!(matching(&set, "select * from small", 100), 0);
    assert_eq!(matching(&set, "COMMIT", 0), 0);
    assert_eq!(matching(&set, "COMMIT; select 1", 0), 1);
}

#[test]
fn a_place_is_given_back_once_and_a_pipeline_is_counted_once() {
    let bound = rule(When::default(), Does { running_max: Some(1), ..Does::default() });
    let (mut one, mut other) = (Ruling::default(), Ruling::default());
    for _ in 0..3 {
        assert!(one.match_all([&bound].into_iter()).refusal.is_none());
    }
    let refused = other.match_all([&bound].into_iter()).refusal.expect("full");
    assert_eq!(refused.code, SqlState::CONFIGURATION_LIMIT_EXCEEDED);
    let counts = &bound.counts;
    assert_eq!((counts.matches(), counts.refused(), counts.running()), (2, 1, 1));
    drop(one);
    assert_eq!(bound.counts.running(), 0);
    assert!(other.match_all([&bound].into_iter()).refusal.is_none());
    drop(other);
    assert_eq!(bound.counts.running(), 0);
}

#[test]
fn one_of_so_many_is_logged_and_what_a_rule_refuses_takes_no_place() {
    let does = Does { log_one_of: 3, running_max: Some(5), ..refuses() };
    let rule = rule(When::default(), does);
    let logged = (0..7).filter(|_| {
        let verdict = Ruling::default().match_all([&rule].into_iter());
        assert!(verdict.refusal.is_some());
        !verdict.logs.is_empty()
    });
    assert_eq!(logged.count(), 3);
    assert_eq!((rule.counts.refused(), rule.counts.running()), (7, 0));
}

#[test]
fn the_shortest_bound_cuts_off_once() {
    let bounded = |seconds| {
        let time_max = Some(Duration::from_secs(seconds));
        rule(When::default(), Does { time_max, ..Does::default() })
    };
    let (long, short) = (bounded(9), bounded(2));
    let mut ruling = Ruling::default();
    ruling.match_all([&long, &short].into_iter());
    ruling.begins(Time::from_micros(1_000_000));
    ruling.begins(Time::from_micros(2_000_000));
    assert_eq!(ruling.ends, Some(Time::from_micros(3_000_000)));
    assert!(ruling.cut_off() && !ruling.cut_off());
    assert_eq!((long.counts.cut_off(), short.counts.cut_off()), (0, 1));
}

#[test]
fn a_digest_takes_all_executions_of_a_statement() {
    let digest = Some(digest(b"select * from t where a = 1").0);
    let set = RuleSet::new(vec![rule(When { digest, ..When::default() }, refuses())]);
    assert_eq!(matching(&set, "SELECT * FROM t WHERE a = 27 /* b */", 0), 1);
    assert_eq!(matching(&set, "select * from t where b = 1", 0), 0);
}

#[test]
fn the_first_rule_with_a_priority_decides_and_begin_has_it_by_who_the_client_is() {
    let with = |when, priority| rule(when, Does { priority: Some(priority), ..Does::default() });
    let kind = Some(Kind::Write);
    let set = RuleSet::new(vec![
        rule(When::default(), Does { log_one_of: 1, ..Does::default() }),
        with(When { kind, ..When::default() }, Priority::High),
        with(When { user: Some("u".into()), ..When::default() }, Priority::Low),
    ]);
    let priority = |user, text: &str| {
        let who = Who { user, ..who(&PeerAddress::Unix) };
        set.priority(who, &[Text::new(text.as_bytes())], Time::ZERO)
    };
    assert_eq!(priority("u", "delete from t"), Priority::High);
    assert_eq!(priority("u", "select 1"), Priority::Low);
    assert_eq!(priority("u", "begin"), Priority::Low);
    assert_eq!(priority("v", "begin"), Priority::Usual);
}

#[test]
fn the_audit_has_what_an_earlier_rule_refuses_and_a_text_that_is_prepared_and_run_once() {
    let audits = rule(When::default(), Does { audits: true, ..Does::default() });
    let verdict =
        Ruling::default().match_all([&rule(When::default(), refuses()), &audits].into_iter());
    assert!(verdict.refusal.is_some() && verdict.audits.is_some());
    assert_eq!(audits.counts.matches(), 0, "it did nothing with it");
    let mut ruling = Ruling::default();
    for (is_parse, text, is_news) in [
        (true, "a", true),
        (false, "a", false),
        (false, "a", true),
        (true, "b", true),
        (false, "a", true),
        (false, "b", true),
    ] {
        ruling.match_all([&audits].into_iter());
        assert_eq!(ruling.is_news_to_audit(is_parse, text.as_bytes()), is_news, "{text}");
    }
}
