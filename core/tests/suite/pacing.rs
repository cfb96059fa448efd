//! How often, how soon and how far apart a machine dials, over hours and over many machines.

use std::collections::BTreeMap;
use std::time::Duration;

use mcp_reconnect_core::{Config, Failure, FailureClass, Input, ParkReason, Status, Timestamp};

use crate::sim::{HEALTHY, HOUR, Life, REFUSES, Server, Sim, at, knobs, secs};

const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

#[test]
fn a_dead_server_costs_few_dials_a_day() {
    let config = Config::default();
    assert!(config.max_dials_unasked(24 * HOUR) <= 106);
    for seed in 0..200 {
        let mut sim = Sim::new(config, seed, |_, _| REFUSES);
        sim.give(Input::Connect { until: sim.now });
        for window in [secs(60), HOUR, 24 * HOUR] {
            sim.run_until(Timestamp::ZERO + window);
            let bound = config.max_dials_unasked(window);
            assert!(sim.dials.len() as u64 <= bound, "seed {seed}: {} dials in {window:?}", sim.dials.len());
        }
        assert_eq!(sim.times(|status| matches!(status, Status::Parked(_))), 1, "one event for the park");
    }
}

/// Ladder steps of 1, 2, 4 … s, each waited for half at least, up to the park; then probes after 60, 120, 240, 480 s and
/// every 900 s.
#[test]
fn the_bound_of_unasked_dials_is_this() {
    let config = Config::default();
    let bounds = [
        (0, 1),
        (499, 1),
        (500, 2),
        (1_499, 2),
        (1_500, 3),
        (3_500, 4),
        (31_499, 6),
        (31_500, 7),
        (61_500, 7), // the ladder's next dial would come after the park
        (91_499, 7),
        (91_500, 8),
        (211_499, 8),
        (211_500, 9),
        (451_500, 10),
        (931_499, 10),
        (931_500, 11),
        (1_831_499, 11),
        (1_831_500, 12),
        (931_500 + 90 * 900_000, 101),
    ];
    for (window, most) in bounds {
        assert_eq!(config.max_dials_unasked(millis(window)), most, "{window} ms");
    }
    assert_eq!(config.max_dials_unasked(Duration::MAX), 20_496_392, "in all the time there is");
    let parks = knobs(|knobs| knobs.park_after(millis(1_500)));
    assert_eq!(
        parks.max_dials_unasked(millis(1_500)),
        3,
        "what comes when the outage is as long as it may be is a dial"
    );
    let paced = knobs(|knobs| knobs.park_after(millis(1)).park_probe(millis(100)).park_probe_max(millis(400)));
    let bounds = [(499, 1), (500, 2), (999, 2), (1_000, 3), (1_499, 3), (1_500, 4), (10_000, 21)];
    for (window, most) in bounds {
        assert_eq!(paced.max_dials_unasked(millis(window)), most, "{window} ms, at the pace of `min_dial_interval`");
    }
}

#[test]
fn the_bound_of_unasked_dials_holds_for_other_knobs() {
    let configs = [
        knobs(|knobs| knobs.backoff(millis(100)).min_dial_interval(millis(50))),
        knobs(|knobs| knobs.park_after(secs(600))),
        knobs(|knobs| knobs.park_probe(secs(1)).park_probe_max(secs(10))),
        knobs(|knobs| knobs.backoff(secs(10)).backoff_max(secs(10)).park_after(secs(1))),
        knobs(|knobs| knobs.park_after(millis(1)).park_probe(millis(100)).park_probe_max(millis(400))),
    ];
    let classes = [FailureClass::Transport, FailureClass::Refused];
    for (config, class) in configs.into_iter().flat_map(|config| classes.map(|class| (config, class))) {
        for window in [secs(1), secs(30), secs(90), HOUR, 24 * HOUR] {
            for seed in 0..20 {
                let mut sim = Sim::new(config, seed, move |_, _| Server::Refuses(millis(10), class.into()));
                sim.give(Input::Connect { until: sim.now });
                sim.run_until(Timestamp::ZERO + window);
                let bound = config.max_dials_unasked(window);
                let dials = sim.dials.len();
                assert!(dials as u64 <= bound, "{class}: {dials} > {bound} in {window:?}: {config:?}");
            }
        }
    }
}

/// A server that completes each handshake and ends is no better than a dead one.
#[test]
fn k10_accept_then_close_parks_like_a_dead_server() {
    for seed in 0..50 {
        let config = Config::default();
        let mut sim =
            Sim::new(config, seed, |_, _| Server::Up(millis(10), Life::Ends(millis(100), FailureClass::Transport)));
        sim.give(Input::Connect { until: sim.now });
        sim.run_for(secs(600));
        // One more than for a dead server: the first loss is redialled at once.
        let bound = config.max_dials_unasked(secs(600)) + 1;
        assert!(sim.dials.len() as u64 <= bound, "{} dials", sim.dials.len());
        assert_eq!(sim.status(), Status::Parked(ParkReason::Flapping));
    }
}

#[test]
fn k10_after_a_proven_session_the_ladder_begins_anew() {
    let ups = [100, 100, 100, 100, 100, 20_000, 100];
    let mut sim = Sim::new(Config::default(), 3, move |dial, _| {
        let up = usize::try_from(dial).ok().and_then(|dial| ups.get(dial - 1)).copied();
        up.map_or(HEALTHY, |up| Server::Up(millis(10), Life::Ends(millis(up), FailureClass::Transport)))
    });
    sim.give(Input::Connect { until: sim.now });
    sim.run_for(secs(120));
    let gaps = sim.gaps();
    assert_eq!(gaps.len(), 7, "{gaps:?}");
    assert!(gaps[4] > 4.0, "the fifth loss in a row waits: {gaps:?}");
    assert!(gaps[5] < 20.1, "the loss of the proven session is redialled at once: {gaps:?}");
    assert!(gaps[6] < 1.2, "and the next failure is on the first step: {gaps:?}");
    assert_eq!(sim.times(|status| matches!(status, Status::Parked(_))), 0);
}

#[test]
fn k08_a_thousand_probes_make_no_event_and_a_call_revives() {
    let mut sim = Sim::new(Config::default(), 1, |_, _| REFUSES);
    sim.give(Input::Connect { until: sim.now });
    sim.run_for(secs(120));
    let events = sim.statuses.len();
    sim.run_for(12 * 24 * HOUR);
    assert!(sim.snapshot().stats.probes >= 1_000, "{:?}", sim.snapshot().stats);
    assert_eq!(sim.statuses.len(), events, "probes make no event");
    sim.set_script(|_, _| HEALTHY);
    sim.run_for(secs(6)); // the last dial was perhaps just now
    sim.connect(secs(15));
    sim.run_for(secs(6));
    assert!(matches!(sim.status(), Status::Ready(_)));
}

#[test]
fn k08_an_outage_of_minutes_ends_with_the_next_probe_or_call() {
    let config = Config::default();
    for called in [false, true] {
        let back = at(150.0);
        let mut sim = Sim::new(config, 1, move |_, now| if now < back { REFUSES } else { HEALTHY });
        sim.give(Input::Connect { until: sim.now });
        sim.run_until(back);
        assert_eq!(sim.status(), Status::Parked(ParkReason::Exhausted));
        if called {
            sim.connect(secs(15));
        }
        let longest = if called { config.demand_interval() } else { 3 * config.park_probe() };
        sim.run_for(longest + secs(1));
        assert!(matches!(sim.status(), Status::Ready(_)), "called: {called}");
    }
}

/// The first connect uses the same policy as a reconnect.
#[test]
fn k08_a_502_on_the_first_connect_is_retried_after_one_step() {
    let mut sim = Sim::new(Config::default(), 1, |dial, _| if dial == 1 { REFUSES } else { HEALTHY });
    sim.give(Input::Connect { until: sim.now });
    sim.run_for(secs(2));
    assert_eq!(sim.dials.len(), 2);
    assert!(matches!(sim.status(), Status::Ready(_)));
}

fn starts(config: Config, takes: &'static [u64]) -> Sim {
    let mut sim = Sim::new(config, 1, |dial, _| {
        let takes = takes[usize::try_from(dial - 1).unwrap_or(0).min(takes.len() - 1)];
        Server::Up(secs(takes), Life::Healthy)
    });
    sim.give(Input::Connect { until: sim.now });
    for _ in 0..40 {
        if let Status::Ready(_) = sim.status() {
            break;
        }
        sim.run_for(secs(60));
    }
    sim
}

#[test]
fn k07_start_timeouts_converge() {
    let slow = starts(knobs(|knobs| knobs.connect_timeout(secs(60))), &[70, 65, 20]);
    assert!(matches!(slow.status(), Status::Ready(_)) && slow.dials.len() <= 3, "{:?}", slow.dials);
    let first = starts(knobs(|knobs| knobs.connect_timeout(secs(20))), &[27]);
    assert!(matches!(first.status(), Status::Ready(_)) && first.dials.len() <= 3, "{:?}", first.dials);
    assert_eq!(first.snapshot().start_timeout, secs(40), "what worked is kept");
}

#[test]
fn k21_hints_are_floors_capped_and_kept() {
    let hints = [60, 5, 99_999];
    let mut sim = Sim::new(Config::default(), 1, move |dial, _| {
        let hint = usize::try_from(dial).ok().and_then(|dial| hints.get(dial - 1)).map(|hint| secs(*hint));
        match (hint, dial) {
            (Some(_), _) => {
                Server::Refuses(millis(10), Failure { class: FailureClass::RateLimited, retry_after: hint })
            }
            (None, 4) => Server::Up(millis(10), Life::Ends(secs(20), FailureClass::Transport)),
            (None, _) => HEALTHY,
        }
    });
    sim.give(Input::Connect { until: at(1e6) });
    sim.run_for(2 * HOUR);
    let gaps = sim.gaps();
    assert_eq!(gaps.len(), 4, "{gaps:?}");
    assert!(gaps[0] >= 60.0 && gaps[1] >= 60.0, "a shorter hint does not shorten: {gaps:?}");
    assert!((900.0..=901.0).contains(&gaps[2]), "capped: {gaps:?}");
    assert!(gaps[3] < 21.0, "a session clears the hint: {gaps:?}");
    assert_eq!(sim.times(|status| matches!(status, Status::Parked(_))), 0, "a rate limit never parks");
}

/// A rate limit is no outage: it climbs to the longest step and stays there, parks never, and callers do not hurry it.
#[test]
fn k21_a_rate_limit_without_a_hint_climbs_and_never_parks() {
    let config = Config::default();
    let mut sim = Sim::new(config, 1, |_, _| Server::Refuses(millis(10), FailureClass::RateLimited.into()));
    for _ in 0..24 * 60 {
        let _answered = sim.connect(secs(15));
        sim.run_for(secs(60));
    }
    assert_eq!(sim.times(|status| matches!(status, Status::Parked(_))), 0);
    let bound = 24 * 3_600 / (config.backoff_max() / 2).as_secs() + 7;
    assert!(sim.dials.len() as u64 <= bound, "{} dials a day", sim.dials.len());
    let late = &sim.gaps()[7..];
    assert!(late.iter().all(|gap| (30.0..60.1).contains(gap)), "{late:?}");
}

/// Ten callers every 10 ms, on a server that is dead, and on one that flaps.
#[test]
fn k09_dials_are_bounded_whatever_callers_do() {
    let servers = [REFUSES, Server::Up(millis(10), Life::Ends(millis(200), FailureClass::Transport))];
    for server in servers {
        let config = Config::default();
        let mut sim = Sim::new(config, 1, move |_, _| server);
        for _ in 0..2 * 60 * 100 {
            for _ in 0..10 {
                let _answered = sim.connect(secs(15));
            }
            sim.run_for(millis(10));
        }
        // Before the park each wait is at least half a step, afterwards at least `demand_interval` after a dial.
        let ladder = 2 + 60 * 2 / config.demand_interval().as_secs() + 4;
        let parked = 60 / config.demand_interval().as_secs() + 1;
        let dials = sim.dials.len() as u64;
        assert!(dials <= ladder + parked, "{dials} dials in two minutes, not at most {}", ladder + parked);
        assert!(dials >= 20, "callers do bring dials forward: {dials}");
    }
}

/// A caller that waits until the very moment of the failure waits no more.
#[test]
fn k09_only_a_caller_that_still_waits_cuts_the_ladder() {
    let config = knobs(|knobs| knobs.backoff(secs(40)));
    for (patience, hurried) in [(millis(10), false), (millis(11), true)] {
        let mut sim = Sim::new(config, 1, |_, _| REFUSES); // after 10 ms
        sim.connect(patience);
        sim.run_for(secs(60));
        let gap = sim.gaps()[0];
        assert_eq!(gap < 6.0, hurried, "{gap} s");
        assert!(hurried || gap >= 20.0, "{gap} s");
    }
}

#[test]
fn k10_failures_in_a_row_count_from_the_last_proven_session() {
    let mut sim = Sim::new(Config::default(), 1, |dial, _| if dial == 4 { HEALTHY } else { REFUSES });
    sim.connect(secs(0));
    let mut counts = Vec::new();
    for _ in 0..3 {
        sim.run_until(sim.snapshot().state.next_dial().unwrap_or(sim.now));
        sim.run_for(millis(20)); // refused
        counts.push(sim.snapshot().stats.failures_in_a_row);
    }
    assert_eq!(counts, [1, 2, 3]);
    sim.run_for(secs(60));
    assert!(matches!(sim.status(), Status::Ready(_)));
    sim.give(Input::Gone { epoch: sim.live(), failure: FailureClass::Transport.into() });
    assert_eq!(sim.snapshot().stats.failures_in_a_row, 1);
}

/// A session that fails a second after it is Ready, seen in four ways: the dials come at the same times.
#[test]
fn k09_every_route_into_a_reconnect_has_the_same_pace() {
    let up = secs(1);
    let by = |life: Life| {
        let config = knobs(|knobs| knobs.keepalive(millis(500)).ping_timeout(millis(250)).ping_misses(1));
        let up = move |dial, _| Server::Up(millis(10), if dial == 1 { Life::Healthy } else { life });
        let mut sim = Sim::new(config, 9, up);
        sim.close_takes = Duration::ZERO; // the end of the stream needs no close
        sim.give(Input::Connect { until: sim.now });
        sim.run_until(at(20.0)); // a session that answers pings, so that silence counts later
        sim.give(Input::Gone { epoch: sim.live(), failure: FailureClass::Transport.into() });
        sim.run_until(at(80.0));
        sim
    };
    let eof = by(Life::Ends(up, FailureClass::Transport));
    let call = by(Life::Breaks(up, FailureClass::Transport));
    let session = by(Life::Breaks(up, FailureClass::SessionGone));
    let deaf = by(Life::Deaf);
    assert!(eof.dials.len() >= 6, "{:?}", eof.dials);
    assert_eq!(call.dials, eof.dials, "a call's error and the end of the stream");
    assert_eq!(session.dials, eof.dials, "a disowned session");
    // The time of the first question is drawn: the verdict comes up to a tenth of a second later.
    for (deaf, eof) in deaf.gaps().into_iter().zip(eof.gaps()) {
        assert!((eof..eof + 0.11).contains(&deaf), "{deaf} s, {eof} s");
    }
    assert_eq!(deaf.dials.len(), eof.dials.len());
}

#[test]
fn k13_machines_that_slept_do_not_dial_together_and_none_parks() {
    let config = knobs(|knobs| knobs.redial_spread(millis(250)));
    let mut dials = Vec::new();
    for seed in 0..8 {
        let mut sim = Sim::new(config, seed, |_, _| HEALTHY);
        sim.connect(secs(10));
        sim.run_for(secs(60));
        sim.sleep(2 * HOUR);
        let woke = sim.now;
        // The sessions died, and the network comes back five seconds later.
        sim.set_script(move |_, now| if now < woke + secs(5) { REFUSES } else { HEALTHY });
        sim.set_life(Life::Deaf);
        sim.give(Input::Lost { epoch: sim.live(), failure: FailureClass::Transport.into() });
        sim.run_for(secs(60));
        assert!(matches!(sim.status(), Status::Ready(_)), "seed {seed}: {:?}", sim.status());
        assert_eq!(sim.times(|status| matches!(status, Status::Parked(_))), 0);
        dials.extend(sim.dials.into_iter().filter(|dial| *dial > woke).map(|dial| dial.since(woke)));
    }
    let together = busiest(&dials, millis(10));
    assert!(together <= 3, "{together} of 8 dials within 10 ms: {dials:?}");
}

/// The most dials in one bucket of this width.
fn busiest(dials: &[Duration], width: Duration) -> usize {
    let mut buckets = BTreeMap::new();
    for dial in dials {
        *buckets.entry(dial.as_nanos() / width.as_nanos()).or_insert(0) += 1;
    }
    buckets.into_values().max().unwrap_or(0)
}

/// What all clients of a server see at the same time is spread, and what one session's end is alone, is not.
#[test]
fn r13_the_first_redial_is_spread_by_class() {
    use FailureClass::{Finished, Refused, SessionGone, Transport, Unauthorized, Unresponsive};
    let config = knobs(|knobs| knobs.redial_spread(secs(2)));
    let classes = [Transport, Refused, Unauthorized, Finished, SessionGone, Unresponsive];
    for (class, spread) in classes.into_iter().zip([true, true, true, true, false, false]) {
        let waits: Vec<Duration> = (0..20)
            .map(|seed| {
                let mut sim = Sim::new(config, seed, |_, _| HEALTHY);
                sim.connect(secs(10));
                sim.run_until(at(100.0));
                sim.sample(true);
                sim.give(Input::Gone { epoch: sim.live(), failure: class.into() });
                sim.run_for(secs(3));
                sim.dials[1].since(at(100.0))
            })
            .collect();
        assert_eq!(waits.iter().any(|wait| *wait > secs(1)), spread, "{class}: {waits:?}");
        assert!(waits.iter().all(|wait| *wait <= secs(2)), "{class}: {waits:?}");
    }
}

#[test]
fn k21_servers_that_reboot_together_are_not_dialled_together() {
    let config = knobs(|knobs| knobs.redial_spread(millis(250)));
    let mut dials = Vec::new();
    for seed in 0..20 {
        let mut sim = Sim::new(config, seed, |_, _| HEALTHY);
        sim.connect(secs(10));
        sim.run_until(at(100.0));
        sim.set_script(|_, now| if now < at(160.0) { REFUSES } else { HEALTHY });
        sim.give(Input::Gone { epoch: sim.live(), failure: FailureClass::Transport.into() });
        sim.run_until(at(400.0));
        assert!(matches!(sim.status(), Status::Ready(_)), "seed {seed}: {:?}", sim.status());
        dials.extend(sim.dials.into_iter().filter(|dial| *dial > at(101.0)).map(|dial| dial.since(at(0.0))));
    }
    // After the first step no 100 ms see more than a third of the machines.
    let together = busiest(&dials, millis(100));
    assert!(together <= 6, "{together} dials of 20 machines within 100 ms");
}

/// A park for a permanent failure is tried when it is asked for, each time later, up to the probe interval; a wake and
/// a session start it anew.
#[test]
fn k04_callers_of_a_permanent_park_are_heard_more_and_more_rarely() {
    let config = Config::default();
    let mut sim = Sim::new(config, 1, |_, _| Server::Refuses(millis(0), FailureClass::Permanent.into()));
    sim.connect(secs(10));
    sim.run_for(millis(1));
    assert_eq!(sim.status(), Status::Parked(ParkReason::Permanent));
    let asking = |sim: &mut Sim, time: Duration| {
        let until = sim.now + time;
        while sim.now < until {
            let _answered = sim.connect(secs(15));
            sim.run_for(millis(100));
        }
    };
    asking(&mut sim, secs(300));
    let gaps: Vec<u64> = sim.gaps().into_iter().map(|gap| gap as u64).collect();
    assert_eq!(gaps, [5, 10, 20, 40, 60, 60, 60], "each caller's dial resets the probe's time");
    asking(&mut sim, 24 * HOUR - secs(300));
    assert!(sim.dials.len() <= 24 * 60 + 5, "{} dials a day", sim.dials.len());
    sim.give(Input::Wake(mcp_reconnect_core::WakeCause::Config));
    sim.run_for(secs(1));
    let woken = sim.dials.len() - 1;
    asking(&mut sim, secs(40));
    let gaps: Vec<u64> = sim.gaps()[woken..].iter().map(|gap| *gap as u64).collect();
    assert_eq!(gaps, [5, 10, 20], "a wake starts it anew");
    sim.set_script(|_, _| HEALTHY);
    asking(&mut sim, secs(60));
    assert!(matches!(sim.status(), Status::Ready(_)));
    sim.set_script(|_, _| Server::Refuses(millis(0), FailureClass::Permanent.into()));
    sim.give(Input::Gone { epoch: sim.live(), failure: FailureClass::Permanent.into() });
    let before = sim.dials.len();
    asking(&mut sim, secs(30));
    assert!(sim.dials.len() - before >= 3, "so does a session");
}

/// A 401 that nobody can renew climbs the ladder, and its park is probed and heeds callers.
#[test]
fn k19_a_401_without_a_hook_is_an_outage_that_parks_as_permanent() {
    let mut sim = Sim::new(Config::default(), 1, |dial, _| {
        if dial == 1 { HEALTHY } else { Server::Refuses(millis(0), FailureClass::Unauthorized.into()) }
    });
    sim.connect(secs(10));
    sim.run_for(secs(100));
    sim.give(Input::Lost { epoch: sim.live(), failure: FailureClass::Unauthorized.into() });
    sim.run_for(secs(20));
    assert_eq!(sim.status(), Status::TransientFailure);
    assert!(sim.dials.len() > 4, "{:?}", sim.dials);
    sim.run_for(secs(60));
    assert_eq!(sim.status(), Status::Parked(ParkReason::Permanent));
    let before = sim.dials.len();
    sim.connect(secs(10));
    sim.run_for(secs(6));
    assert_eq!(sim.dials.len(), before + 1);
    sim.set_script(|_, _| HEALTHY);
    sim.run_for(HOUR);
    assert!(matches!(sim.status(), Status::Ready(_)), "the next probe");
}

/// Only a park that needs a user, and one that was asked for, do not hear callers.
#[test]
fn r14_needs_auth_and_requested_refuse_callers() {
    for (class, dials) in [(Some(FailureClass::NeedsAuth), 1), (None, 0)] {
        let class = class.unwrap_or(FailureClass::Transport);
        let mut sim = Sim::new(Config::default(), 1, move |_, _| Server::Refuses(millis(0), class.into()));
        if dials == 0 {
            sim.give(Input::Park);
        }
        for _ in 0..100 {
            let told = sim.connect(HOUR);
            sim.run_for(secs(1));
            assert!(sim.dials.len() == dials, "{class}: {told:?}");
        }
    }
}

/// A server that greets everybody and then knows nobody: its sessions have proven nothing, however long they were left
/// alone. One that gave a result has, and so has one that said anything when it was `stable_after` old.
#[test]
fn r13_a_session_that_was_disowned_before_it_served_is_not_proven() {
    for (proof, proven) in [("nothing", false), ("a result", true), ("a pong", true), ("an early message", false)] {
        let mut sim = Sim::new(Config::default(), 1, |_, _| HEALTHY);
        sim.connect(secs(10));
        for _ in 0..12 {
            sim.run_for(secs(5));
            let Status::Ready(epoch) = sim.status() else { continue };
            let (served, heard) = match proof {
                "a result" => (true, sim.snapshot().since),
                "a pong" => (false, sim.now + secs(10)),
                "an early message" => (false, sim.now),
                _ => (false, sim.snapshot().since),
            };
            if proof == "a pong" {
                sim.run_until(heard);
            }
            sim.give(Input::Traffic {
                epoch,
                inbound: heard,
                answered: false,
                served,
                answered_to: None,
                oldest: None,
            });
            sim.run_for(secs(10));
            sim.give(Input::Lost { epoch, failure: FailureClass::SessionGone.into() });
        }
        let flapped = sim.times(|status| matches!(status, Status::Parked(ParkReason::Flapping))) > 0;
        assert_eq!(flapped, !proven, "{proof}: {:?}", sim.statuses);
        let gaps = sim.gaps();
        assert_eq!(gaps[2] > gaps[0] + 0.5, !proven, "{proof}: the ladder climbs, {gaps:?}");
    }
    // Whatever else ends it, a session that lasted is proven.
    let mut sim = Sim::new(Config::default(), 1, |_, _| HEALTHY);
    sim.connect(secs(10));
    for _ in 0..12 {
        sim.run_for(secs(15));
        sim.give(Input::Lost { epoch: sim.live(), failure: FailureClass::Transport.into() });
    }
    assert_eq!(sim.times(|status| matches!(status, Status::Parked(_))), 0);
}
