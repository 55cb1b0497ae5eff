//! Reservations by the book, and every short history of three hosts against what has to hold in all of them.

use super::*;
use std::collections::BTreeSet;

const A: HostId = [0xa; 16];
const B: HostId = [0xb; 16];
const C: HostId = [0xc; 16];
const CONFLICT: Status = Status::RESERVATION_CONFLICT.dnr();
const INVALID: Status = Status::INVALID_FIELD.dnr();

fn run(state: &mut Reservations, host: HostId, command: Command) -> Vec<(HostId, Notice)> {
    state.carry_out(host, command).expect("it is allowed").notices
}

/// Hosts A, B and C with keys 1, 2 and 3; A has acquired.
fn held(kind: Kind) -> Reservations {
    let mut state = Reservations::new();
    for (host, key) in [(A, 1), (B, 2), (C, 3)] {
        run(&mut state, host, Command::Register { key });
    }
    run(&mut state, A, Command::Acquire { current: 1, kind });
    state
}

fn preempt(current: u64, key: u64, kind: Kind) -> Command {
    Command::Preempt {
        current,
        key,
        kind,
        abort: false,
    }
}

#[test]
fn every_type_admits_whom_it_should() {
    use Access::{Full, Nothing, ReadOnly};
    // The holder, another registered host, a host that is not registered.
    for (kind, holder, registrant, stranger) in [
        (Kind::WriteExclusive, Full, ReadOnly, ReadOnly),
        (Kind::ExclusiveAccess, Full, Nothing, Nothing),
        (Kind::WriteExclusiveRegistrants, Full, Full, ReadOnly),
        (Kind::ExclusiveAccessRegistrants, Full, Full, Nothing),
        (Kind::WriteExclusiveAll, Full, Full, ReadOnly),
        (Kind::ExclusiveAccessAll, Full, Full, Nothing),
    ] {
        let mut state = held(kind);
        assert_eq!(
            (state.access(&A), state.access(&B)),
            (holder, registrant),
            "{kind:?}"
        );
        assert_eq!(state.access(&[9; 16]), stranger, "{kind:?}");
        run(&mut state, C, Command::Unregister { current: Some(3) });
        assert_eq!(state.access(&C), stranger, "{kind:?}");
    }
    assert_eq!(Reservations::new().access(&A), Full);
}

#[test]
fn keys_have_to_match_where_they_are_compared() {
    let mut state = held(Kind::WriteExclusive);
    let before = state.clone();
    for command in [
        Command::Register { key: 7 },
        Command::Unregister { current: Some(7) },
        Command::Replace {
            current: Some(7),
            key: 1,
        },
        Command::Acquire {
            current: 7,
            kind: Kind::WriteExclusive,
        },
        preempt(7, 2, Kind::WriteExclusive),
        Command::Release {
            current: 7,
            kind: Some(Kind::WriteExclusive),
        },
        Command::Clear { current: 7 },
    ] {
        assert_eq!(state.carry_out(A, command), Err(CONFLICT), "{command:?}");
        if !matches!(command, Command::Register { .. }) {
            assert_eq!(
                state.carry_out([9; 16], command),
                Err(CONFLICT),
                "a stranger's {command:?}"
            );
        }
        assert_eq!(state, before);
    }
    run(&mut state, A, Command::Register { key: 1 });
    run(
        &mut state,
        A,
        Command::Replace {
            current: None,
            key: 7,
        },
    );
    run(
        &mut state,
        A,
        Command::Replace {
            current: Some(7),
            key: 8,
        },
    );
    assert!(state.holds(&A), "a new key does not end a reservation");
    assert_eq!(
        state.carry_out(
            [9; 16],
            Command::Replace {
                current: None,
                key: 1
            }
        ),
        Err(CONFLICT)
    );
    run(&mut state, A, Command::Unregister { current: None });
    assert_eq!(state.kind(), None);
}

#[test]
fn a_reservation_is_acquired_once() {
    for kind in Kind::ALL {
        for other in Kind::ALL {
            let mut state = held(kind);
            let again = state.carry_out(
                A,
                Command::Acquire {
                    current: 1,
                    kind: other,
                },
            );
            assert_eq!(again.is_ok(), kind == other, "{kind:?} then {other:?}");
            let by_another = state.carry_out(
                B,
                Command::Acquire {
                    current: 2,
                    kind: other,
                },
            );
            assert_eq!(
                by_another.is_ok(),
                kind == other && kind.all_hold(),
                "{kind:?}, then B {other:?}"
            );
        }
    }
}

#[test]
fn a_release_names_the_type_and_tells_those_whom_it_concerns() {
    for kind in Kind::ALL {
        let mut state = held(kind);
        let release = |current, kind| Command::Release {
            current,
            kind: Some(kind),
        };
        if !kind.all_hold() {
            assert_eq!(run(&mut state, B, release(2, kind)), [], "nothing of its own");
            assert_eq!(state.kind(), Some(kind));
        }
        let wrong = if kind == Kind::WriteExclusive {
            Kind::ExclusiveAccess
        } else {
            Kind::WriteExclusive
        };
        assert_eq!(state.carry_out(A, release(1, wrong)), Err(INVALID));
        assert_eq!(
            state.carry_out(
                A,
                Command::Release {
                    current: 1,
                    kind: None
                }
            ),
            Err(INVALID)
        );
        let told: &[_] = match kind {
            Kind::WriteExclusive | Kind::ExclusiveAccess => &[],
            _ => &[(B, Notice::ReservationReleased), (C, Notice::ReservationReleased)],
        };
        assert_eq!(run(&mut state, A, release(1, kind)), told, "{kind:?}");
        assert_eq!(state.kind(), None);
        assert_eq!(run(&mut state, A, release(1, kind)), [], "there is none any more");
    }
}

#[test]
fn a_holder_that_unregisters_ends_its_reservation() {
    let unregister = Command::Unregister { current: None };
    let mut state = held(Kind::ExclusiveAccess);
    assert_eq!(run(&mut state, A, unregister), []);
    assert_eq!(state.kind(), None);
    let mut state = held(Kind::WriteExclusiveRegistrants);
    let released = Notice::ReservationReleased;
    assert_eq!(run(&mut state, A, unregister), [(B, released), (C, released)]);
    assert_eq!(state.kind(), None);
    let mut state = held(Kind::WriteExclusiveAll);
    for host in [A, C] {
        assert_eq!(run(&mut state, host, unregister), []);
        assert!(state.holds(&B), "the others hold it still");
    }
    run(&mut state, B, unregister);
    assert_eq!(state.kind(), None);
}

#[test]
fn a_preempt_of_the_holder_takes_its_place() {
    let preempted = Notice::RegistrationPreempted;
    let mut state = held(Kind::WriteExclusive);
    assert_eq!(
        run(&mut state, B, preempt(2, 1, Kind::WriteExclusive)),
        [(A, preempted)]
    );
    assert!(state.holds(&B) && state.access(&A) == Access::ReadOnly);
    // Another type: who stays is told that the old one is gone.
    let mut state = held(Kind::WriteExclusive);
    let told = run(&mut state, B, preempt(2, 1, Kind::ExclusiveAccess));
    assert_eq!(told, [(A, preempted), (C, Notice::ReservationReleased)]);
    // Its own: only the type changes.
    let mut state = held(Kind::WriteExclusive);
    run(&mut state, A, preempt(1, 1, Kind::ExclusiveAccess));
    assert!(state.holds(&A) && state.kind() == Some(Kind::ExclusiveAccess));
    assert_eq!(
        state.carry_out(B, preempt(2, 0, Kind::WriteExclusive)),
        Err(INVALID)
    );
}

#[test]
fn a_preempt_of_others_removes_them_and_leaves_the_reservation() {
    let mut state = held(Kind::WriteExclusiveRegistrants);
    let told = run(&mut state, B, preempt(2, 3, Kind::ExclusiveAccess));
    assert_eq!(told, [(C, Notice::RegistrationPreempted)]);
    assert!(state.holds(&A) && state.kind() == Some(Kind::WriteExclusiveRegistrants));
    assert_eq!(
        state.carry_out(B, preempt(2, 3, Kind::ExclusiveAccess)),
        Err(CONFLICT),
        "nobody has that key"
    );
    // Without a reservation nothing is acquired by it.
    let mut state = Reservations::new();
    for (host, key) in [(A, 1), (B, 2), (C, 2)] {
        run(&mut state, host, Command::Register { key });
    }
    assert_eq!(run(&mut state, A, preempt(1, 2, Kind::WriteExclusive)).len(), 2);
    assert_eq!(
        (state.kind(), state.carry_out(B, Command::Clear { current: 2 })),
        (None, Err(CONFLICT))
    );
}

#[test]
fn a_preempt_without_a_key_takes_what_all_hold() {
    let mut state = held(Kind::ExclusiveAccessAll);
    let told = run(&mut state, C, preempt(3, 0, Kind::ExclusiveAccessAll));
    assert_eq!(
        told,
        [
            (A, Notice::RegistrationPreempted),
            (B, Notice::RegistrationPreempted)
        ]
    );
    assert!(state.holds(&C) && !state.holds(&A));
    let mut state = held(Kind::ExclusiveAccessAll);
    run(&mut state, C, preempt(3, 1, Kind::WriteExclusive));
    assert_eq!(state.kind(), Some(Kind::ExclusiveAccessAll));
    assert!(state.holds(&B) && state.holds(&C) && !state.holds(&A));
}

#[test]
fn a_preempt_and_abort_names_whose_commands_are_to_end() {
    let mut state = held(Kind::WriteExclusive);
    let command = Command::Preempt {
        current: 2,
        key: 1,
        kind: Kind::ExclusiveAccess,
        abort: true,
    };
    let effect = state.carry_out(B, command).expect("it is allowed");
    assert_eq!(effect.aborted, [A], "not C, which is only told");
}

#[test]
fn a_clear_ends_everything() {
    let mut state = held(Kind::ExclusiveAccess);
    let preempted = Notice::ReservationPreempted;
    assert_eq!(
        run(&mut state, B, Command::Clear { current: 2 }),
        [(A, preempted), (C, preempted)]
    );
    assert_eq!((state.kind(), state.access(&C)), (None, Access::Full));
    assert_eq!(state.report(|_| 1).len(), 64);
}

#[test]
fn commands_are_read_from_their_dword_and_data() {
    let data = [1u64.to_le_bytes(), 2u64.to_le_bytes()].concat();
    let kind = Kind::ExclusiveAccess;
    assert_eq!(Command::register(0, &data), Ok(Command::Register { key: 2 }));
    assert_eq!(
        Command::register(0b10 << 30 | 1, &data),
        Ok(Command::Unregister { current: Some(1) })
    );
    assert_eq!(
        Command::register(8 | 2, &data),
        Ok(Command::Replace {
            current: None,
            key: 2
        })
    );
    assert_eq!(
        Command::acquire(2 << 8, &data),
        Ok(Command::Acquire { current: 1, kind })
    );
    let abort = Command::Preempt {
        current: 1,
        key: 2,
        kind,
        abort: true,
    };
    assert_eq!(Command::acquire(2 << 8 | 2, &data), Ok(abort));
    assert_eq!(
        Command::release(2 << 8, &data[..8]),
        Ok(Command::Release {
            current: 1,
            kind: Some(kind)
        })
    );
    assert_eq!(Command::release(1, &data[..8]), Ok(Command::Clear { current: 1 }));
    for (register, dw10) in [
        (true, 3),
        (true, 0b11 << 30),
        (true, 0b01 << 30),
        (false, 2 << 8 | 3),
        (false, 0),
        (false, 7 << 8),
    ] {
        let read = if register {
            Command::register(dw10, &data)
        } else {
            Command::acquire(dw10, &data)
        };
        assert_eq!(read, Err(INVALID), "{dw10:#x}");
    }
    assert_eq!(
        Command::acquire(2 << 8 | 8, &data),
        Err(INVALID),
        "a key is compared always"
    );
    assert_eq!(Command::release(8, &data[..8]), Err(INVALID));
    assert_eq!(Command::release(2, &data[..8]), Err(INVALID));
    for read in [
        Command::register(0, &data[..8]),
        Command::acquire(2 << 8, &data[..15]),
        Command::release(0, &data),
    ] {
        assert_eq!(read, Err(Status::SGL_LENGTH.dnr()));
    }
}

#[test]
fn a_report_counts_changes_and_names_holders() {
    let state = held(Kind::WriteExclusiveRegistrants);
    let page = state.report(|host| if *host == B { 0xffff } else { 5 });
    assert_eq!(page.len(), 4 * 64);
    assert_eq!(
        page[..4],
        3u32.to_le_bytes(),
        "three registrations; acquiring is not counted"
    );
    assert_eq!((page[4], page[5], page[6], page[9]), (3, 3, 0, 0));
    let entries: Vec<&[u8]> = page.chunks_exact(64).skip(1).collect();
    for (entry, (host, key, cntlid, holds)) in
        entries
            .iter()
            .zip([(A, 1u64, 5u16, 1), (B, 2, 0xffff, 0), (C, 3, 5, 0)])
    {
        assert_eq!(entry[..2], cntlid.to_le_bytes());
        assert_eq!(
            (entry[2], &entry[8..16], &entry[16..32]),
            (holds, &key.to_le_bytes()[..], &host[..])
        );
    }
    let page = held(Kind::ExclusiveAccessAll).report(|_| 1);
    assert_eq!(
        [page[64 + 2], page[128 + 2], page[192 + 2]],
        [1; 3],
        "all hold it"
    );
}

#[test]
fn notices_are_read_one_by_one_and_masked_ones_are_not_noted() {
    let mut log = NoticeLog::default();
    assert_eq!(log.page(1, false), [0; 64]);
    log.set_mask(1 << 2);
    assert!(!log.push(Notice::ReservationReleased));
    assert!(log.push(Notice::RegistrationPreempted) && log.push(Notice::ReservationPreempted));
    let head = |page: [u8; 64]| (page[0], page[8], page[9], page[12]);
    assert_eq!(head(log.page(1, true)), (1, 1, 1, 1));
    assert_eq!(head(log.page(1, false)), (1, 1, 1, 1));
    assert_eq!(head(log.page(1, false)), (2, 3, 0, 1));
    assert_eq!(log.page(1, false), [0; 64]);
    for _ in 0..NOTICES_MAX + 3 {
        log.push(Notice::RegistrationPreempted);
    }
    assert_eq!(
        head(log.page(1, false)),
        (6, 1, NOTICES_MAX as u8 - 1, 1),
        "three were lost, which the count shows"
    );
}

#[test]
fn registrations_are_bounded() {
    let mut state = Reservations::new();
    for number in 0..REGISTRANTS_MAX as u128 {
        run(&mut state, number.to_le_bytes(), Command::Register { key: 1 });
    }
    assert_eq!(
        state.carry_out([0xff; 16], Command::Register { key: 1 }),
        Err(Status::INTERNAL)
    );
}

/// Every command of three hosts with two keys.
fn commands() -> Vec<(HostId, Command)> {
    let mut commands = Vec::new();
    for host in [A, B, C] {
        for current in 1..=2 {
            commands.push((host, Command::Register { key: current }));
            commands.push((
                host,
                Command::Unregister {
                    current: Some(current),
                },
            ));
            commands.push((
                host,
                Command::Replace {
                    current: None,
                    key: current,
                },
            ));
            commands.push((host, Command::Clear { current }));
            for kind in Kind::ALL {
                commands.push((host, Command::Acquire { current, kind }));
                commands.push((
                    host,
                    Command::Release {
                        current,
                        kind: Some(kind),
                    },
                ));
                commands.extend((0..=2).map(|key| (host, preempt(current, key, kind))));
            }
        }
    }
    commands
}

/// What has to hold in every state, said without the code's own words.
fn check(state: &Reservations) {
    let hosts = [A, B, C];
    let registered = |host: &HostId| state.registrants.contains_key(host);
    let holders: Vec<HostId> = hosts.into_iter().filter(|host| state.holds(host)).collect();
    assert!(
        holders.iter().all(registered),
        "only a registered host holds: {state:?}"
    );
    match state.kind() {
        None => assert!(holders.is_empty() && hosts.iter().all(|host| state.access(host) == Access::Full)),
        Some(Kind::WriteExclusiveAll | Kind::ExclusiveAccessAll) => {
            assert!(
                !holders.is_empty()
                    && hosts
                        .iter()
                        .all(|host| registered(host) == holders.contains(host))
            );
        }
        Some(_) => assert_eq!(holders.len(), 1, "{state:?}"),
    }
    // Somebody can always read and write, so that no reservation locks everybody out.
    assert!(
        hosts.iter().any(|host| state.access(host) == Access::Full),
        "{state:?}"
    );
}

#[test]
fn every_state_of_three_hosts_is_sound() {
    let commands = commands();
    let (mut seen, mut edge) = (BTreeSet::new(), vec![Reservations::new()]);
    while let Some(state) = edge.pop() {
        check(&state);
        for &(host, command) in &commands {
            let mut next = state.clone();
            match next.carry_out(host, command) {
                Err(_) => assert_eq!(next, state, "{command:?} was refused"),
                Ok(effect) => {
                    let told: BTreeSet<_> = effect.notices.iter().map(|(other, _)| *other).collect();
                    assert!(!told.contains(&host), "nobody is told of what it did itself");
                    let gone: BTreeSet<HostId> = state.registrants.keys().copied().collect();
                    let gone = gone
                        .into_iter()
                        .filter(|other| !next.registrants.contains_key(other));
                    for other in gone.filter(|other| *other != host) {
                        assert!(
                            told.contains(&other),
                            "{command:?} removed {other:?} without a word"
                        );
                    }
                }
            }
            next.generation = 0;
            if seen.insert(format!("{next:?}")) {
                edge.push(next);
            }
        }
    }
    // 27 registrations of three hosts with no or one of two keys; of each, none, two types that all hold, and four that
    // one of the registered hosts holds: 27 + 26 × 2 + 4 × (6 × 1 + 12 × 2 + 8 × 3).
    assert_eq!(seen.len(), 27 + 26 * 2 + 4 * 54);
}
