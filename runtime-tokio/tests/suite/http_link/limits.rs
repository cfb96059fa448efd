//! Rate limits.

use super::*;

#[tokio::test]
async fn k21_a_rate_limit_is_told_with_its_delay_and_loses_nothing() {
    let (server, _) =
        legacy(|_, request| (request.rpc() == "tools/call").then(|| answer(429, &[("retry-after", "7")], "slow down")))
            .await;
    let connection = connect(&server);
    let error = add(&connection).await.unwrap_err();
    assert!(
        matches!(error, CallError::RateLimited { retry_after: Some(delay), .. } if delay == Duration::from_secs(7)),
        "{error:?}"
    );
    assert!(error.not_run());
    assert_eq!((epoch(&connection).await, server.count("tools/call")), (1, 1));
}

#[tokio::test]
async fn k21_hints_at_a_dial_reach_the_machine() {
    for (code, class) in [(429, FailureClass::RateLimited), (503, FailureClass::Transport)] {
        let (server, _) = legacy(move |_, _| Some(answer(code, &[("retry-after", "7")], ""))).await;
        let connection = connect(&server);
        let (failure, cause) = until_status(&connection, |status| status == Status::TransientFailure).await;
        assert!(failure.is_none_or(|failure| failure == class), "{failure:?}");
        assert!(cause.contains(&format!("HTTP {code}")), "{cause}");
        // One question, no probe, and nothing learnt about the server's era.
        assert_eq!((server.requests().len(), connection.era_facts().era), (1, None), "{code}");
        // The wait is the hint's, not the ladder's.
        let snapshot = connection.snapshot();
        let next = snapshot.state.next_dial().unwrap();
        assert!(next.since(snapshot.since) >= Duration::from_secs(6), "{snapshot:?}");
    }
}

#[tokio::test]
async fn k21_a_rate_limited_ping_is_a_sign_of_life() {
    let (server, _) =
        legacy(|_, request| (request.rpc() == "ping").then(|| answer(429, &[("retry-after", "1")], ""))).await;
    let short = Duration::from_millis(20);
    let config =
        Config::builder().keepalive(short).ping_timeout(Duration::from_secs(1)).ping_misses(1).build().unwrap();
    let connector = HttpConnector::new(server_of(&server));
    let connection = Connection::builder(connector).config(config).build().unwrap();
    let pings = |log: &Vec<Request>| log.iter().filter(|request| request.rpc() == "ping").count();
    server.until("a third ping", |log| pings(log) == 3).await;
    assert_eq!((epoch(&connection).await, server.count("initialize")), (1, 1));
}
