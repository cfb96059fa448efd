//! The circuit breakers of others, by their own documented calls.

use std::future::{Ready, ready};
use std::hint::black_box;
use std::io;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use circuitbreaker_rs::{BreakerError, DefaultPolicy, State};
use failsafe::{CircuitBreaker as _, backoff, failure_policy};
use tower::Service;
use tower_resilience::circuitbreaker::{CircuitBreakerConfigBuilder, CircuitBreakerLayer, CircuitState};

use crate::{Breaker, CLOSED, FAILED, GOOD, OPEN, REFUSED, STRIKES};

pub(crate) fn all() -> Vec<Breaker> {
    failsafe().into_iter().chain(recloser()).chain(circuitbreaker_rs()).chain(tower_resilience()).collect()
}

/// The cheapest error.
const BROKEN: io::ErrorKind = io::ErrorKind::BrokenPipe;

fn failsafe() -> [Breaker; 4] {
    const WHO: &str = "failsafe 1.3.0";
    let breaker = |failures: u32| {
        let policy = failure_policy::consecutive_failures(failures, backoff::constant(OPEN));
        failsafe::Config::new().failure_policy(policy).build()
    };
    let (closed, good, failed) = (breaker(STRIKES.into()), breaker(STRIKES.into()), breaker(u32::MAX));
    let open = breaker(STRIKES.into());
    (0..STRIKES).for_each(|_| open.on_error());
    [
        Breaker::new(WHO, CLOSED, move || assert!(black_box(&closed).is_call_permitted())),
        Breaker::new(WHO, REFUSED, move || {
            assert!(matches!(black_box(&open).call(|| Ok::<_, ()>(())), Err(failsafe::Error::Rejected)));
        }),
        Breaker::new(WHO, GOOD, move || assert!(black_box(&good).call(|| Ok::<_, ()>(black_box(()))).is_ok())),
        Breaker::new(WHO, FAILED, move || {
            let failed = black_box(&failed).call(|| Err::<(), _>(black_box(())));
            assert!(matches!(failed, Err(failsafe::Error::Inner(()))));
        }),
    ]
}

/// It tells nobody whether a call would pass: no `closed`. It counts a share of failures, of the last so many calls.
fn recloser() -> [Breaker; 3] {
    const WHO: &str = "recloser 1.4.0";
    let breaker =
        |share: f32| recloser::Recloser::custom().error_rate(share).closed_len(STRIKES.into()).open_wait(OPEN).build();
    let (open, good, failed) = (breaker(1.0), breaker(1.0), breaker(2.0));
    while !matches!(open.call(|| Err::<(), _>(())), Err(recloser::Error::Rejected)) {}
    [
        Breaker::new(WHO, REFUSED, move || {
            assert!(matches!(black_box(&open).call(|| Ok::<_, ()>(())), Err(recloser::Error::Rejected)));
        }),
        Breaker::new(WHO, GOOD, move || assert!(black_box(&good).call(|| Ok::<_, ()>(black_box(()))).is_ok())),
        Breaker::new(WHO, FAILED, move || {
            let failed = black_box(&failed).call(|| Err::<(), _>(black_box(())));
            assert!(matches!(failed, Err(recloser::Error::Inner(()))));
        }),
    ]
}

fn circuitbreaker_rs() -> [Breaker; 4] {
    const WHO: &str = "circuitbreaker-rs 0.1.1";
    let breaker = |failures: u64| {
        circuitbreaker_rs::CircuitBreaker::<DefaultPolicy, io::Error>::builder()
            .consecutive_failures(failures)
            .failure_threshold(2.0) // of 1: those in a row alone
            .cooldown(OPEN)
            .build()
    };
    let (closed, good, failed) = (breaker(STRIKES.into()), breaker(STRIKES.into()), breaker(u64::MAX));
    let open = breaker(STRIKES.into());
    assert!(open.force_open());
    [
        Breaker::new(WHO, CLOSED, move || assert_eq!(black_box(&closed).current_state(), State::Closed)),
        Breaker::new(WHO, REFUSED, move || {
            assert!(matches!(black_box(&open).call(|| Ok(())), Err(BreakerError::Open)));
        }),
        Breaker::new(WHO, GOOD, move || assert!(black_box(&good).call(|| Ok(black_box(()))).is_ok())),
        Breaker::new(WHO, FAILED, move || {
            let failed = black_box(&failed).call(|| Err::<(), _>(black_box(BROKEN).into()));
            assert!(matches!(failed, Err(BreakerError::Operation(_))));
        }),
    ]
}

/// The service that is called: it answers at once, as it is told.
#[derive(Clone)]
struct Answers(Result<(), io::ErrorKind>);

impl Service<()> for Answers {
    type Response = ();
    type Error = io::ErrorKind;
    type Future = Ready<Result<(), io::ErrorKind>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, (): ()) -> Self::Future {
        ready(black_box(self.0))
    }
}

/// Ready, called, and polled to its end: nothing of it waits.
fn call<S: Service<()>>(service: &mut S) -> Result<S::Response, S::Error> {
    let mut context = Context::from_waker(Waker::noop());
    assert!(matches!(service.poll_ready(&mut context), Poll::Ready(Ok(()))));
    match pin!(black_box(service).call(())).poll(&mut context) {
        Poll::Ready(result) => result,
        Poll::Pending => panic!("a service that answers at once"),
    }
}

fn tower_resilience() -> [Breaker; 4] {
    const WHO: &str = "tower-resilience 0.13.0";
    let breaker = |failures: usize| -> CircuitBreakerConfigBuilder<_> {
        CircuitBreakerLayer::builder().consecutive_failures(failures).wait_duration_in_open(OPEN)
    };
    let strikes = usize::from(STRIKES);
    let (_, handle) = breaker(strikes).build_with_handle().expect("the knobs are valid");
    let mut open = breaker(strikes).build().expect("the knobs are valid").layer_fn(Answers(Err(BROKEN)));
    (0..strikes).for_each(|_| assert!(call(&mut open).is_err()));
    let mut good = breaker(strikes).build().expect("the knobs are valid").layer_fn(Answers(Ok(())));
    let mut failed = breaker(usize::MAX).build().expect("the knobs are valid").layer_fn(Answers(Err(BROKEN)));
    [
        Breaker::new(WHO, CLOSED, move || assert_eq!(black_box(&handle).state(), CircuitState::Closed)),
        Breaker::new(WHO, REFUSED, move || assert!(call(&mut open).is_err_and(|error| error.is_circuit_open()))),
        Breaker::new(WHO, GOOD, move || assert!(call(&mut good).is_ok())),
        Breaker::new(WHO, FAILED, move || {
            assert!(call(&mut failed).is_err_and(|error| !error.is_circuit_open()));
        }),
    ]
}
