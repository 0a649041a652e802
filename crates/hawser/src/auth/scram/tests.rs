use proptest::prelude::*;

use super::client::{
    ClientBinding, ClientCredentials, ClientError, ClientExchange, ClientStep, ServerOffer,
};
use super::server::{ServerBinding, ServerError, ServerExchange, ServerStep};
use super::*;

// PostgreSQL 15: CREATE ROLE joe PASSWORD 'secret'
const VERIFIER: &str = "SCRAM-SHA-256$4096:1k4G5mwcAQt0xMoB1Np7bQ==\
    $4w4Xvj+gywGWTpcvoe0dZuLLuhwqHleRx3pEkJieNjk=:K5+y5LYD1lxHkcZcIt4cXAoPfmLhxyckuPnbM23wknI=";
// PostgreSQL 15: CREATE ROLE "user prep" PASSWORD E'I\u00ADX\u00A0\u2168', which SASLprep makes "IX IX"
const PREPARED_VERIFIER: &str = "SCRAM-SHA-256$4096:CXhqf/wJlTTW0Pge8ivUrA==\
    $nOthQ8BiHJ0wfqZOfNeiAYdFflC5r0l+1Q58paPKU9Y=:yg/PuZeOnUTYnGu9YsdfvgrQYIYR3HY9jH7hJHImhuE=";

// RFC 7677, section 3, but for the user's name, which PostgreSQL leaves empty.
const RFC_CLIENT_NONCE: &str = "rOprNGfwEbeRWgbNEkqO";
const RFC_SERVER_NONCE: &str = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0";
const RFC_CLIENT_FIRST: &[u8] = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO";
const RFC_SERVER_FIRST: &[u8] =
    b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096";
const RFC_CLIENT_FINAL: &[u8] = b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,\
    p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=";
const RFC_SERVER_FINAL: &[u8] = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=";

fn nonce(text: &str) -> Nonce {
    Nonce::literal(text).unwrap()
}

fn mock() -> MockNonce {
    MockNonce::generate(|bytes| bytes.fill(42))
}

fn cheap_keys(password: &[u8]) -> ScramKeys {
    derive(password, b"0123456789abcdef", NonZeroU32::MIN)
}

fn server(account: Account, binding: ServerBinding, mechanism: &str) -> ServerExchange {
    ServerExchange::start(account, binding, mechanism, nonce("SERVER")).unwrap()
}

fn plain_server(account: Account) -> ServerExchange {
    server(account, ServerBinding::Unavailable, SCRAM_SHA_256)
}

fn next(exchange: &mut ServerExchange, input: &[u8]) -> Result<Vec<u8>, ServerError> {
    match exchange.step(Some(input))? {
        ServerStep::Continue(message) | ServerStep::Done { message, .. } => Ok(message),
    }
}

fn rfc_keys() -> ScramKeys {
    let salt = BASE64.decode("W22ZaJ0SNY7soEsUEjb6gQ==").unwrap();
    derive(b"pencil", &salt, ITERATIONS_DEFAULT)
}

#[test]
fn the_server_speaks_the_example_of_rfc_7677() {
    let account = Account::known(rfc_keys().verifier);
    let mut server = ServerExchange::start(
        account,
        ServerBinding::Unavailable,
        SCRAM_SHA_256,
        nonce(RFC_SERVER_NONCE),
    )
    .unwrap();
    assert_eq!(next(&mut server, RFC_CLIENT_FIRST).unwrap(), RFC_SERVER_FIRST);
    match server.step(Some(RFC_CLIENT_FINAL)).unwrap() {
        ServerStep::Done { message, keys } => {
            assert_eq!(message, RFC_SERVER_FINAL);
            assert_eq!(keys, rfc_keys(), "the client key that the proof shows");
        }
        ServerStep::Continue(_) => panic!("done"),
    }
    assert_eq!(server.step(Some(b"x")).unwrap_err(), ServerError::Finished);
}

#[test]
fn the_client_verifies_the_signature_over_the_example_of_rfc_7677() {
    // The example has the user's name in it and libpq leaves it out, so the signatures are checked as such.
    let message = AuthMessage {
        client_first_bare: RFC_CLIENT_FIRST[3..].to_vec(),
        server_first: RFC_SERVER_FIRST.to_vec(),
        client_final_without_proof: RFC_CLIENT_FINAL[..RFC_CLIENT_FINAL.len() - 47].to_vec(),
    };
    let keys = rfc_keys();
    let proof = keys.client_key.xor(&message.sign(&keys.verifier.stored_key));
    assert!(RFC_CLIENT_FINAL.ends_with(BASE64.encode(proof.0).as_bytes()));
    let mut client = ClientExchange::start(
        ClientCredentials::Keys(keys),
        ServerOffer::of([SCRAM_SHA_256]),
        &ClientBinding::NoTls,
        nonce(RFC_CLIENT_NONCE),
    )
    .unwrap();
    assert_eq!(client.initial(), b"n,,n=,r=rOprNGfwEbeRWgbNEkqO");
    assert!(matches!(client.server_first(RFC_SERVER_FIRST), Ok(ClientStep::Respond(_))));
}

#[test]
fn verifiers_of_postgresql_are_read_written_and_fit_their_passwords() {
    for (text, password) in [
        (VERIFIER, "secret"),
        (PREPARED_VERIFIER, "I\u{ad}X\u{a0}\u{2168}"),
        (PREPARED_VERIFIER, "IX IX"),
    ] {
        let verifier = ScramVerifier::parse(text).unwrap();
        assert_eq!(verifier.to_stored(), text);
        let account = Account::known(verifier.clone());
        let keys = verify_password(&account, password.as_bytes()).unwrap();
        assert_eq!(keys.verifier(), &verifier);
        assert!(verify_password(&account, b"other").is_none());
    }
}

#[test]
fn a_password_that_cannot_be_prepared_is_taken_as_it_is() {
    assert_eq!(prepare_password(b"\xff\xfe"), b"\xff\xfe", "not UTF-8");
    assert_eq!(prepare_password("a\u{7}".as_bytes()), b"a\x07", "a prohibited character");
    assert_eq!(prepare_password("\u{627}1".as_bytes()), "\u{627}1".as_bytes(), "bidirectional");
    assert_eq!(prepare_password("\u{ad}".as_bytes()), "\u{ad}".as_bytes(), "nothing is left");
    assert_eq!(prepare_password("\u{aa}".as_bytes()), b"a", "RFC 4013, example 4");
}

#[test]
fn every_other_verifier_is_refused() {
    for length in 0..VERIFIER.len() {
        assert_eq!(ScramVerifier::parse(&VERIFIER[..length]), None, "{length}");
    }
    for (from, to) in [
        ("4096", "0"),
        ("4096", "-1"),
        ("4096", "+1"),
        ("4096", "2147483648"),
        ("1k4G", "1k4"),
        ("SHA-256", "SHA-1"),
        ("4w4X", "4w4XAAAA"),
    ] {
        assert_eq!(ScramVerifier::parse(&VERIFIER.replacen(from, to, 1)), None, "{to}");
    }
}

/// Runs a login of a client against an account; both results.
fn login(
    account: Account,
    server_binding: ServerBinding,
    password: &[u8],
    client_binding: &ClientBinding,
) -> Result<(ScramKeys, Result<(), ClientError>), ServerError> {
    let offer = ServerOffer::of(server_binding.mechanisms().iter().copied());
    let credentials = ClientCredentials::Password { password: password.into(), known: None };
    let mut client =
        ClientExchange::start(credentials, offer, client_binding, nonce("CLIENT")).unwrap();
    let mut server = server(account, server_binding, client.mechanism());
    let challenge = next(&mut server, &client.initial())?;
    let ClientStep::Derive(derivation) = client.server_first(&challenge).unwrap() else {
        panic!("a password without keys is derived")
    };
    let response = client.respond_with(&derivation.run()).unwrap();
    match server.step(Some(&response))? {
        ServerStep::Done { message, keys } => {
            let verdict = client.server_final(&message);
            assert_eq!(client.is_finished(), verdict.is_ok());
            Ok((keys, verdict))
        }
        ServerStep::Continue(_) => panic!("two steps are all"),
    }
}

#[test]
fn both_ends_agree_with_and_without_channel_binding() {
    let keys = cheap_keys(b"secret");
    let account = || Account::known(keys.verifier.clone());
    let hash = || vec![7; 32];
    let cases = [
        (ServerBinding::Unavailable, ClientBinding::NoTls),
        (ServerBinding::Unavailable, ClientBinding::Unsupported),
        (ServerBinding::Unavailable, ClientBinding::Prefer(hash())),
        (ServerBinding::EndPoint(hash()), ClientBinding::Unsupported),
        (ServerBinding::EndPoint(hash()), ClientBinding::Prefer(hash())),
        (ServerBinding::EndPoint(hash()), ClientBinding::Require(hash())),
    ];
    for (server, client) in cases {
        let (found, verdict) = login(account(), server.clone(), b"secret", &client).unwrap();
        assert_eq!(found, keys);
        assert_eq!(verdict, Ok(()));
        assert_eq!(
            login(account(), server, b"secre", &client).unwrap_err(),
            ServerError::WrongProof
        );
    }
}

#[test]
fn channel_binding_detects_a_man_in_the_middle() {
    use ClientBinding::{NoTls, Prefer, Require, Unsupported};
    let account = || Account::known(cheap_keys(b"secret").verifier);
    let end_point = || ServerBinding::EndPoint(vec![7; 32]);
    let other = Prefer(vec![8; 32]);
    let error = login(account(), end_point(), b"secret", &other).unwrap_err();
    assert_eq!(error, ServerError::BindingMismatch);
    assert_eq!(error.sqlstate(), "28000");

    let error = next(&mut server(account(), end_point(), SCRAM_SHA_256), b"y,,n=,r=x").unwrap_err();
    assert_eq!(error, ServerError::Downgraded);
    assert_eq!(error.sqlstate(), "28000");
    assert_eq!(error.to_string(), "SCRAM channel binding negotiation error");

    let start = |offer: &[&'static str], binding| {
        let credentials = ClientCredentials::Keys(cheap_keys(b"x"));
        ClientExchange::start(
            credentials,
            ServerOffer::of(offer.iter().copied()),
            &binding,
            nonce("x"),
        )
        .map(|client| client.mechanism())
    };
    assert_eq!(start(&[SCRAM_SHA_256], Require(vec![1])), Err(ClientError::BindingRequired));
    assert_eq!(
        start(&[SCRAM_SHA_256, SCRAM_SHA_256_PLUS], NoTls),
        Err(ClientError::PlusWithoutTls)
    );
    assert_eq!(start(&[SCRAM_SHA_256_PLUS], Unsupported), Err(ClientError::NoMechanism));
    assert_eq!(start(&["OAUTHBEARER"], Prefer(vec![1])), Err(ClientError::NoMechanism));
    assert_eq!(
        start(&[SCRAM_SHA_256, SCRAM_SHA_256_PLUS], Prefer(vec![1])),
        Ok(SCRAM_SHA_256_PLUS)
    );
}

/// All that a client sees of a login with `password`, with the texts of the errors.
fn transcript(account: Account, password: &[u8]) -> Vec<String> {
    let mut seen = Vec::new();
    let credentials = ClientCredentials::Password { password: password.into(), known: None };
    let mut client = ClientExchange::start(
        credentials,
        ServerOffer::of([SCRAM_SHA_256]),
        &ClientBinding::NoTls,
        nonce("CLIENT"),
    )
    .unwrap();
    let mut server = plain_server(account);
    let challenge = next(&mut server, &client.initial()).unwrap();
    seen.push(String::from_utf8(challenge.clone()).unwrap());
    let ClientStep::Derive(derivation) = client.server_first(&challenge).unwrap() else { panic!() };
    let response = client.respond_with(&derivation.run()).unwrap();
    let error = server.step(Some(&response)).unwrap_err();
    seen.push(format!("{} {error} {:?}", error.sqlstate(), error.detail()));
    seen
}

#[test]
fn an_unknown_user_looks_like_a_wrong_password() {
    // The same user with a plain password, with none, and not there at all: equal to the last byte.
    let Preparation::Derive(derivation) =
        Account::prepare("joe", &Secret::Plain("secret".into()), &mock())
    else {
        panic!("a plain password is derived")
    };
    let known = Account::known(derivation.run().verifier);
    let Preparation::Ready(without) = Account::prepare("joe", &Secret::None, &mock()) else {
        panic!("nothing to derive")
    };
    let wrong = transcript(known.clone(), b"wrong");
    assert_eq!(wrong, transcript(without, b"wrong"));
    assert_eq!(wrong, transcript(Account::unknown("joe", &mock()), b"wrong"));
    assert_eq!(wrong, transcript(known.expired(), b"secret"), "the right password, too late");

    // A stored verifier has another salt, of the same length, and as many iterations.
    let stored = Account::known(ScramVerifier::parse(VERIFIER).unwrap());
    let stored = transcript(stored, b"wrong");
    assert_eq!(stored[0].len(), wrong[0].len());
    assert!(stored[0].ends_with(",i=4096") && wrong[0].ends_with(",i=4096"));
    assert_eq!(stored[1], wrong[1]);
}

#[test]
fn a_made_up_salt_stays_the_same_and_differs_between_users_and_processes() {
    let first = |user: &str, mock: &MockNonce| {
        next(&mut plain_server(Account::unknown(user, mock)), b"n,,n=,r=C").unwrap()
    };
    assert_eq!(first("joe", &mock()), first("joe", &mock()));
    assert_ne!(first("joe", &mock()), first("ann", &mock()));
    let other = MockNonce::generate(|bytes| bytes.fill(43));
    assert_ne!(first("joe", &mock()), first("joe", &other));
}

#[test]
fn a_proof_made_for_the_made_up_verifier_is_refused_too() {
    // Its keys are zeros, which anyone may guess: only the mark of doom stands in the way.
    let mut server = plain_server(Account::unknown("joe", &mock()));
    let server_first = next(&mut server, b"n,,n=,r=C").unwrap();
    let message = AuthMessage {
        client_first_bare: b"n=,r=C".to_vec(),
        server_first,
        client_final_without_proof: b"c=biws,r=CSERVER".to_vec(),
    };
    let proof = message.sign(&Key([0; KEY_LENGTH]));
    let last = format!("c=biws,r=CSERVER,p={}", BASE64.encode(proof.0));
    assert_eq!(next(&mut server, last.as_bytes()), Err(ServerError::WrongProof));
    let account = Account { verifier: cheap_keys(b"x").verifier, doomed: true };
    assert!(verify_password(&account, b"x").is_none());
}

#[test]
fn keys_of_a_client_log_in_to_a_server_with_the_same_verifier_only() {
    let verifier = cheap_keys(b"secret").verifier;
    let (keys, _) = login(
        Account::known(verifier.clone()),
        ServerBinding::Unavailable,
        b"secret",
        &ClientBinding::NoTls,
    )
    .unwrap();
    let start = |keys: &ScramKeys| {
        ClientExchange::start(
            ClientCredentials::Keys(keys.clone()),
            ServerOffer::of([SCRAM_SHA_256]),
            &ClientBinding::NoTls,
            nonce("CLIENT"),
        )
        .unwrap()
    };
    let mut client = start(&keys);
    let mut same = plain_server(Account::known(verifier));
    let challenge = next(&mut same, &client.initial()).unwrap();
    let ClientStep::Respond(response) = client.server_first(&challenge).unwrap() else { panic!() };
    let last = next(&mut same, &response).unwrap();
    assert_eq!(client.server_final(&last), Ok(()));

    for (salt, iterations) in [(&b"0123456789abcdef"[..], 2), (b"0123456789abcdeF", 1)] {
        let other = derive(b"secret", salt, NonZeroU32::new(iterations).unwrap());
        let mut client = start(&keys);
        let mut server = plain_server(Account::known(other.verifier));
        let challenge = next(&mut server, &client.initial()).unwrap();
        assert_eq!(client.server_first(&challenge).unwrap_err(), ClientError::KeysDoNotFit);
    }
}

#[test]
fn keys_of_an_earlier_login_spare_the_derivation() {
    let keys = cheap_keys(b"secret");
    let credentials =
        ClientCredentials::Password { password: (*b"secret").into(), known: Some(keys.clone()) };
    let start = || {
        let offer = ServerOffer::of([SCRAM_SHA_256]);
        ClientExchange::start(credentials.clone(), offer, &ClientBinding::NoTls, nonce("C"))
            .unwrap()
    };
    let challenge = |salt: &str| format!("r=CS,s={salt},i=1").into_bytes();
    let same = challenge(&BASE64.encode(b"0123456789abcdef"));
    assert!(matches!(start().server_first(&same), Ok(ClientStep::Respond(_))));
    assert!(matches!(start().server_first(&challenge("AAAA")), Ok(ClientStep::Derive(_))));
    let mut client = start();
    client.server_first(&challenge("AAAA")).unwrap();
    assert_eq!(client.respond_with(&keys), Err(ClientError::KeysDoNotFit));
}

fn client() -> ClientExchange {
    let credentials = ClientCredentials::Password { password: (*b"secret").into(), known: None };
    let offer = ServerOffer::of([SCRAM_SHA_256]);
    ClientExchange::start(credentials, offer, &ClientBinding::NoTls, nonce("C")).unwrap()
}

#[test]
fn a_server_that_asks_for_too_much_work_is_refused_before_any_of_it() {
    let first =
        |iterations: &str| client().server_first(format!("r=CS,s=AAAA,i={iterations}").as_bytes());
    assert!(first("1000000").is_ok());
    for (iterations, count) in
        [("1000001", 1_000_001), ("2000000000", 2_000_000_000), ("18446744073709551615", u64::MAX)]
    {
        let error = first(iterations).unwrap_err();
        assert_eq!(error, ClientError::TooManyIterations(count));
        assert!(error.to_string().contains("more than the 1000000 allowed"), "{error}");
    }
    for iterations in ["", "0", "-1", "+1", "x", "1 ", "18446744073709551616"] {
        assert_eq!(first(iterations).unwrap_err(), ClientError::Malformed("iteration count"));
    }
}

#[test]
fn every_malformed_message_of_a_server_is_an_error() {
    let whole = b"r=CS,s=c2FsdA==,i=12";
    for length in 0..whole.len() - 1 {
        assert!(client().server_first(&whole[..length]).is_err(), "{length}");
    }
    assert!(client().server_first(whole).is_ok());
    assert!(client().server_first(b"r=CS,s=c2FsdA==,i=12,x=extension").is_ok());
    assert_eq!(
        client().server_first(b"r=XS,s=c2FsdA==,i=1").unwrap_err(),
        ClientError::NonceMismatch
    );
    assert_eq!(
        client().server_first(b"r=C,s=c2FsdA==,i=1").unwrap_err(),
        ClientError::NonceMismatch
    );
    assert!(client().server_first(b"r=CS,s=,i=1").is_err());
    let long = format!("r=CS,s={},i=1", BASE64.encode([0; SALT_LENGTH_MAX + 1]));
    assert!(client().server_first(long.as_bytes()).is_err());

    let responded = || {
        let mut client = client();
        let Ok(ClientStep::Derive(derivation)) = client.server_first(b"r=CS,s=c2FsdA==,i=1") else {
            panic!()
        };
        client.respond_with(&derivation.run()).unwrap();
        client
    };
    let wrong = format!("v={}", BASE64.encode([0; 32]));
    for length in 0..wrong.len() {
        assert!(matches!(
            responded().server_final(&wrong.as_bytes()[..length]),
            Err(ClientError::Malformed(_))
        ));
    }
    let mut refused = responded();
    assert_eq!(refused.server_final(wrong.as_bytes()), Err(ClientError::WrongSignature));
    assert!(!refused.is_finished(), "an AuthenticationOk after this is a lie");
    assert_eq!(
        responded().server_final(b"e=other-error\x1b[2J"),
        Err(ClientError::Server("other-error?[2J".to_owned()))
    );
    assert_eq!(client().server_final(b"v="), Err(ClientError::OutOfOrder));
    assert_eq!(responded().server_first(whole).unwrap_err(), ClientError::OutOfOrder);
}

#[test]
fn malformed_messages_of_a_client_have_the_words_and_codes_of_postgresql() {
    let plain = |input: &[u8]| {
        next(&mut plain_server(Account::known(cheap_keys(b"x").verifier)), input).unwrap_err()
    };
    let plus = |input: &[u8]| {
        let account = Account::known(cheap_keys(b"x").verifier);
        next(&mut server(account, ServerBinding::EndPoint(vec![1]), SCRAM_SHA_256_PLUS), input)
            .unwrap_err()
    };
    let malformed = [
        plain(b""),
        plain(b"n,,n=,r=x\0"),
        plain(b"x"),
        plain(b"\xff"),
        plain(b"n"),
        plain(b"nx"),
        plain(b"y;"),
        plain(b"n,"),
        plain(b"n,x"),
        plain(b"n,,"),
        plain(b"n,,r=x"),
        plain(b"n,,n"),
        plain(b"n,,n=,x"),
        plain(b"n,,n=,r=x,1"),
        plain(b"n,,n=,r=x,a"),
        plain(b"p=tls-server-end-point,,n=,r=x"),
        plus(b"n,,n=,r=x"),
        plus(b"y,,n=,r=x"),
        plus(b"p"),
    ];
    for error in malformed {
        assert_eq!(error.to_string(), "malformed SCRAM message");
        assert_eq!(error.sqlstate(), "08P01");
    }
    let messages = [
        (
            plain(b"n,a=x,n=,r=x"),
            "0A000",
            "client uses authorization identity, but it is not supported",
        ),
        (plain(b"n,,m=x,n=,r=x"), "0A000", "client requires an unsupported SCRAM extension"),
        (plain(b"n,,n=,r=\x07"), "08P01", "non-printable characters in SCRAM nonce"),
        (
            plus(b"p=tls-unique\xff,,n=,r=x"),
            "08P01",
            "unsupported SCRAM channel-binding type \"tls-unique?\"",
        ),
    ];
    for (error, sqlstate, message) in messages {
        assert_eq!((error.sqlstate(), error.to_string().as_str()), (sqlstate, message));
    }
    let account = || Account::known(cheap_keys(b"x").verifier);
    let start = |mechanism| {
        ServerExchange::start(account(), ServerBinding::Unavailable, mechanism, nonce("S"))
            .unwrap_err()
    };
    for mechanism in ["", "SCRAM-SHA-1", SCRAM_SHA_256_PLUS] {
        assert_eq!(start(mechanism), ServerError::InvalidMechanism);
    }
}

#[test]
fn a_client_may_leave_out_its_first_message_and_send_it_after_an_empty_challenge() {
    let mut server = plain_server(Account::known(cheap_keys(b"x").verifier));
    assert!(matches!(server.step(None), Ok(ServerStep::Continue(message)) if message.is_empty()));
    assert!(next(&mut server, b"n,,n=,r=x").is_ok());
    assert!(server.step(None).is_err());
}

#[test]
fn every_malformed_final_message_of_a_client_is_an_error() {
    let last = |input: &[u8]| {
        let mut server = plain_server(Account::known(cheap_keys(b"x").verifier));
        next(&mut server, b"n,,n=,r=C").unwrap();
        next(&mut server, input).unwrap_err()
    };
    let proof = BASE64.encode([0; 32]);
    let whole = format!("c=biws,r=CSERVER,p={proof}");
    assert_eq!(last(whole.as_bytes()), ServerError::WrongProof);
    let extended = format!("c=biws,r=CSERVER,x=y,p={proof}");
    assert_eq!(last(extended.as_bytes()), ServerError::WrongProof);
    for length in 0..whole.len() {
        let error = last(&whole.as_bytes()[..length]);
        assert_eq!(error.sqlstate(), "08P01", "{length}: {error:?}");
    }
    let table = [
        (format!("c=eSws,r=CSERVER,p={proof}"), ServerError::UnexpectedBinding),
        (format!("c=biwsx,r=CSERVER,p={proof}"), ServerError::UnexpectedBinding),
        (format!("c=biws,r=CSERVERx,p={proof}"), ServerError::NonceMismatch),
        (format!("c=biws,r=SERVERC,p={proof}"), ServerError::NonceMismatch),
        (format!("{whole},x=y"), ServerError::Malformed),
        (whole.replace("p=A", "p="), ServerError::Malformed),
    ];
    for (input, expected) in table {
        assert_eq!(last(input.as_bytes()), expected, "{input}");
    }
}

#[test]
fn nothing_that_is_printed_holds_a_key() {
    let keys = cheap_keys(b"secret");
    let client = client();
    let server = plain_server(Account::known(keys.verifier.clone()));
    for printed in [
        format!("{keys:?}"),
        format!("{client:?}"),
        format!("{server:?}"),
        format!("{:?}", Derivation::new(b"secret", b"salt", NonZeroU32::MIN)),
        format!("{:?}", mock()),
    ] {
        assert!(!printed.contains("secret") && !printed.contains('['), "{printed}");
    }
}

proptest! {
    #[test]
    fn no_message_of_a_client_panics(
        messages in prop::collection::vec(r"(([npyacrmx]=?|[,=]|biws|tls-server-end-point|CSERVER|[\x00-\xff]){0,12})", 1..4),
        plus in any::<bool>(),
    ) {
        let binding = if plus { ServerBinding::EndPoint(vec![1; 32]) } else { ServerBinding::Unavailable };
        let mechanism = binding.mechanisms()[0];
        let mut server = server(Account::known(cheap_keys(b"x").verifier), binding, mechanism);
        for message in messages {
            let _ = server.step(Some(message.as_bytes()));
        }
    }

    #[test]
    fn no_change_of_one_byte_logs_in(at in 0_usize..200, byte in any::<u8>()) {
        let keys = cheap_keys(b"secret");
        let mut client = client();
        let mut server = plain_server(Account::known(keys.verifier.clone()));
        let challenge = next(&mut server, &client.initial()).unwrap();
        client.server_first(&challenge).unwrap();
        let mut response = client.respond_with(&keys).unwrap();
        let at = at % response.len();
        prop_assume!(response[at] != byte);
        response[at] = byte;
        prop_assert!(server.step(Some(&response)).is_err());
    }

    #[test]
    fn no_message_of_a_server_panics(
        first in r"(r=C|[rsi]=|[,=]|[0-9]|AAAA|[\x00-\xff]){0,12}",
        last in r"([ve]=|[,=]|AAAA|[\x00-\xff]){0,12}",
    ) {
        let mut client = client();
        if let Ok(ClientStep::Derive(derivation)) = client.server_first(first.as_bytes()) {
            let keys = ScramKeys {
                verifier: ScramVerifier { salt: derivation.salt.clone(), iterations: derivation.iterations, ..cheap_keys(b"x").verifier },
                ..cheap_keys(b"x")
            };
            client.respond_with(&keys).unwrap();
        }
        let _ = client.server_final(last.as_bytes());
    }

    #[test]
    fn no_verifier_panics(text in r"(SCRAM-SHA-256|[$:]|[0-9]|AAAA|\PC){0,12}") {
        let _ = ScramVerifier::parse(&text);
    }
}
