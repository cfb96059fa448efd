//! How soon a session is back whose server was away for a moment, and what the server sees of it.

use std::time::Duration;

use mcp_reconnect_core::{Config, FailureClass, Input, Timestamp};

use crate::sim::{HEALTHY, Server, Sim, at, knobs, secs};

const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// When the session is lost.
const LOSS: u64 = 100;

/// A server on another host, as the runtime sets it.
fn remote() -> Config {
    knobs(|knobs| knobs.redial_spread(millis(250)))
}

/// A server on the same host.
fn loopback() -> Config {
    knobs(|knobs| knobs.demand_backoff(millis(50)))
}

/// A proven session is lost, and nobody listens for so long: when the dial comes that finds it open, counted from then,
/// and how many were refused. A caller comes so long after the loss and waits for a minute.
fn outage(config: Config, seed: u64, down: Duration, late: Duration) -> (Duration, usize) {
    let back = at(0.0) + secs(LOSS) + down;
    let refused = Server::Refuses(Duration::from_micros(100), FailureClass::Refused.into());
    let mut sim =
        Sim::new(config, seed, move |_, now| if now < at(0.0) + secs(LOSS) || now >= back { HEALTHY } else { refused });
    let until = sim.now;
    sim.give(Input::Connect { until });
    sim.run_for(secs(LOSS));
    sim.give(Input::Gone { epoch: sim.live(), failure: FailureClass::Transport.into() });
    sim.run_for(late);
    let _waits = sim.connect(secs(60));
    sim.run_until(back + secs(10));
    let found = sim.dials.iter().position(|dial| *dial >= back).expect("found within 10 s");
    (sim.dials[found].since(back), found - 1)
}

/// The mean over outages from `least` to `most`: of the wait after the server is back, in milliseconds, and of the
/// refused dials.
fn mean(config: Config, least: Duration, most: Duration, late: impl Fn(Duration) -> Duration) -> (f64, f64) {
    const OUTAGES: u32 = 1_000;
    let (mut waits, mut dials) = (0.0, 0.0);
    for number in 0..OUTAGES {
        let down = least + (most - least) * (2 * number + 1) / (2 * OUTAGES);
        let (wait, refused) = outage(config, u64::from(number) * 7_919 + 1, down, late(down));
        waits += wait.as_secs_f64() * 1e3;
        dials += refused as f64;
    }
    (waits / f64::from(OUTAGES), dials / f64::from(OUTAGES))
}

/// With a caller from the loss on, and with one who comes when half of the outage is over. The numbers are printed:
/// `cargo test -p mcp-reconnect-core --all-features --test suite quick -- --nocapture`.
#[test]
fn k26_a_session_is_back_soon_after_its_server() {
    let columns = [(0, 100), (100, 300), (300, 1_000), (1_000, 2_000), (2_000, 5_000), (10_000, 15_000)];
    let bars = [
        ("remote", remote(), "from the loss on", [150.0, 150.0, 350.0, 700.0, 1_200.0, 1_200.0]),
        ("remote", remote(), "late", [150.0, 150.0, 350.0, 800.0, 1_600.0, 1_600.0]),
        ("loopback", loopback(), "from the loss on", [60.0, 120.0, 350.0, 700.0, 1_200.0, 1_200.0]),
        ("loopback", loopback(), "late", [60.0, 120.0, 350.0, 800.0, 1_600.0, 1_600.0]),
    ];
    for (name, config, who, bars) in bars {
        for ((least, most), bar) in columns.into_iter().zip(bars) {
            let late = |down: Duration| if who == "late" { down / 2 } else { millis(1) };
            let (wait, dials) = mean(config, millis(least), millis(most), late);
            println!("{name}, {least} to {most} ms, a caller {who}: {wait:.0} ms, {dials:.1} dials refused");
            assert!(wait <= bar, "{name}, {least} to {most} ms, a caller {who}: {wait} ms, not {bar}");
            assert!(dials <= 15.0, "{name}, {least} to {most} ms, a caller {who}: {dials} dials refused");
        }
    }
    let (wait, _) = mean(loopback(), millis(200), millis(200), |_| millis(1));
    assert!(wait <= 120.0, "down for 0.2 s on the same host: {wait} ms");
}

/// Off, both are as before: the first step is `backoff`, the pace `min_dial_interval`.
#[test]
fn k26_without_these_knobs_nobody_listening_is_as_any_failure() {
    let off = knobs(|knobs| knobs.demand_backoff(secs(0)).refused_interval(secs(0)));
    let (wait, dials) = mean(off, millis(100), millis(300), |_| millis(1));
    assert!(wait > 450.0 && dials < 1.5, "{wait} ms, {dials} dials");
}

/// A caller who gives up leaves the ladder as it would have been: an outage of half a minute parks nobody.
#[test]
fn k26_callers_who_gave_up_do_not_park_the_server() {
    for seed in 0..100 {
        let refused = Server::Refuses(millis(1), FailureClass::Refused.into());
        let mut sim =
            Sim::new(remote(), seed, move |dial, now| if dial == 1 || now > at(130.0) { HEALTHY } else { refused });
        sim.connect(secs(1));
        sim.run_until(at(100.0));
        sim.give(Input::Gone { epoch: sim.live(), failure: FailureClass::Transport.into() });
        sim.connect(secs(15));
        sim.run_until(at(120.0));
        assert_eq!(sim.withdrawn, 0, "seed {seed}");
        let unasked = sim.dials.iter().filter(|dial| **dial > at(115.0)).count();
        assert!(unasked <= 3, "seed {seed}: nobody waits any more, {:?}", sim.dials);
    }
}

/// The server closes its connections and goes on: those who wait for a session are spread as if nobody did.
#[test]
fn k26_a_thousand_clients_with_callers_do_not_dial_together() {
    let mut dials: Vec<Duration> =
        (0..1_000).map(|seed| outage(remote(), seed * 31 + 5, secs(0), millis(1)).0).collect();
    dials.sort_unstable();
    let together = dials.iter().map(|from| dials.iter().filter(|at| (*from..*from + millis(5)).contains(at)).count());
    let together = together.max().unwrap_or(0);
    println!("{together} of 1000 dials within 5 ms");
    assert!(together <= 40, "{together} of 1000 dials within 5 ms");
    assert!(dials.last() <= Some(&millis(250)), "{:?}", dials.last());
}

/// A wake is no caller: a loop of wakes does not dial more often for nobody listening.
#[test]
fn k26_a_loop_of_wakes_keeps_its_pace() {
    let refused = Server::Refuses(millis(1), FailureClass::Refused.into());
    let mut sim = Sim::new(remote(), 1, move |_, _| refused);
    for _ in 0..1_000 {
        sim.give(Input::Wake(mcp_reconnect_core::WakeCause::Operator));
        sim.run_for(millis(10));
    }
    assert!(sim.dials.len() <= 21, "{} dials in 10 s", sim.dials.len());
    assert!(sim.gaps().into_iter().all(|gap| gap >= 0.5), "{:?}", sim.gaps());
}

/// R14, with a caller at every moment: before the park a step is at least half of what it may be, after it
/// `demand_interval` holds; per hour and per day.
#[test]
fn k26_dials_are_bounded_though_callers_never_leave() {
    let most_asked = |config: &Config, class: FailureClass, window: Duration| {
        let (mut age, mut before) = (Duration::ZERO, 1);
        let longest = if class == FailureClass::Refused { secs(3) } else { config.demand_interval() };
        let mut step = config.backoff();
        while age <= config.park_after().min(window) {
            if class == FailureClass::Refused {
                step = age.max(config.demand_backoff());
            }
            age += step.min(longest) / 2;
            step *= 2;
            before += 1;
        }
        let rest = window.saturating_sub(config.park_after());
        before + rest.as_secs() / config.demand_interval().as_secs() + 1
    };
    for class in [FailureClass::Transport, FailureClass::Refused] {
        for config in [remote(), loopback()] {
            let mut sim = Sim::new(config, 1, move |_, _| Server::Refuses(Duration::from_micros(100), class.into()));
            let mut known = Vec::new();
            for window in [secs(60), secs(3_600), secs(24 * 3_600)] {
                while sim.now < Timestamp::ZERO + window {
                    let _answered = sim.connect(secs(15));
                    sim.run_for(secs(1));
                }
                let most = most_asked(&config, class, window);
                known.push((sim.dials.len(), most));
                assert!(sim.dials.len() as u64 <= most, "{class}: {} dials in {window:?}, not {most}", sim.dials.len());
            }
            println!("{class}: {known:?} in a minute, an hour, a day");
        }
        let bounds = [secs(60), secs(3_600), secs(24 * 3_600)].map(|window| most_asked(&remote(), class, window));
        let expected = if class == FailureClass::Refused { [49, 757, 17_317] } else { [28, 736, 17_296] };
        assert_eq!(bounds, expected, "{class}");
    }
    assert!(remote().max_dials_unasked(secs(24 * 3_600)) <= 106, "nobody waits");
}
