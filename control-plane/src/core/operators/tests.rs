//! Who is let in, and what an admin may store.
#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;

fn request(secret: &Secret) -> OperatorRequest {
    OperatorRequest {
        operator_id: "abcdef0123456789".into(),
        secret_sha256: secret.hash().to_hex(),
        name: "ada".into(),
        role: Role::Operator,
    }
}

#[test]
fn only_the_right_secret_of_a_live_row_opens() {
    let secret = Secret::generate();
    let mut operators = Operators::default();
    assert!(operators.authenticate("abcdef0123456789", &secret).is_err(), "nobody is let in by default");
    let row = new_row(&request(&secret), "local", 1).unwrap();
    operators.apply(row.clone(), Position(1));
    assert_eq!(operators.authenticate("abcdef0123456789", &secret).unwrap(), ("ada".into(), Role::Operator));
    let wrong = operators.authenticate("abcdef0123456789", &Secret::generate()).unwrap_err();
    let unknown = operators.authenticate("no-such-id-here", &secret).unwrap_err();
    assert_eq!(wrong, unknown, "a wrong secret and an unknown id are told the same");
    operators.apply(OperatorRow { revoked_at_unix_ms: Some(2), ..row }, Position(2));
    assert_eq!(operators.authenticate("abcdef0123456789", &secret).unwrap_err(), wrong);
    assert_eq!((operators.len(), operators.active()), (1, 0));
}

#[test]
fn what_an_admin_sends_is_checked() {
    let secret = Secret::generate();
    let good = request(&secret);
    let bad = [
        OperatorRequest { operator_id: "x".into(), ..good.clone() },
        OperatorRequest { operator_id: "../../../../etc".into(), ..good.clone() },
        OperatorRequest { secret_sha256: "12".into(), ..good.clone() },
        OperatorRequest { name: " ".into(), ..good.clone() },
        OperatorRequest { name: "a\u{1b}[2J".into(), ..good.clone() },
        OperatorRequest { name: "n".repeat(65), ..good.clone() },
    ];
    for request in bad {
        assert_eq!(new_row(&request, "local", 1).unwrap_err().code, Code::InvalidArgument, "{request:?}");
    }
    assert!(new_row(&good, "local", 1).is_ok());
}

fn row(number: usize, revoked_at_unix_ms: Option<i64>) -> OperatorRow {
    let operator_id = format!("operator-{number:04}");
    let request = OperatorRequest { operator_id, ..request(&Secret::generate()) };
    OperatorRow { revoked_at_unix_ms, ..new_row(&request, "local", 1).unwrap() }
}

fn position(number: usize) -> Position {
    Position(u64::try_from(number).unwrap())
}

#[test]
fn revoked_ones_make_room_and_active_ones_never() {
    let mut operators = Operators::default();
    for number in 0..OPERATORS_MAX {
        let revoked = (number % 2 == 0).then_some(i64::try_from(number).unwrap());
        operators.apply(row(number, revoked), position(number));
    }
    let name = |number: usize| (format!("operator-{number:04}"), position(number));
    assert_eq!(
        operators.room(OPERATORS_MAX as i64).unwrap(),
        [name(0)],
        "all places are taken: the oldest goes"
    );
    let later = operators.room(KEPT_MS + 5).unwrap();
    assert_eq!(later, [name(0), name(2), name(4)], "those that were revoked a year ago go");
    operators.forget(&later);
    assert!(operators.room(KEPT_MS + 5).unwrap().is_empty());
    assert_eq!((operators.len(), operators.active()), (OPERATORS_MAX - 3, OPERATORS_MAX / 2));
    let mut operators = Operators::default();
    for number in 0..OPERATORS_MAX {
        operators.apply(row(number, None), position(number));
    }
    assert_eq!(operators.room(i64::MAX).unwrap_err().reason, "TOO_MANY_OPERATORS");
}
