//! Carries out the actions of one line.

use std::io;
use std::sync::Arc;

use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio::time::sleep;

use super::answer::{self, Refusal, Request};
use super::engine::{Order, Server};
use super::host::{Exit, Grandchild, Host, Output, Route};
use super::http::{HttpAction, HttpOutput};
use super::ledger::Event;
use super::script::{Action, Plan};

/// What a turn is about, and so where its messages go.
#[derive(Debug)]
pub(crate) enum Caller {
    Request(Request),
    Event(Route),
}

/// Plays the actions one after another.
pub(crate) async fn play<H: Host>(server: Arc<Server<H>>, caller: Caller, actions: Vec<Action>) {
    let committed = actions.contains(&Action::Commit);
    let (request, route) = match &caller {
        Caller::Request(request) => (Some(request), &request.route),
        Caller::Event(route) => (None, route),
    };
    let plan = server.plan();
    let mut turn = Turn { server: &*server, plan, request, route, committed, baton: None };
    for action in actions {
        turn.act(action).await;
    }
}

/// Lets held turns go one at a time, the last first: each holder passes it on when it is done.
#[derive(Debug)]
pub(crate) struct Baton(Vec<oneshot::Sender<Self>>);

impl Drop for Baton {
    fn drop(&mut self) {
        if let Some(next) = self.0.pop() {
            // A holder that is gone gives it back, and it goes to the next.
            drop(next.send(Self(std::mem::take(&mut self.0))));
        }
    }
}

struct Turn<'a, H> {
    server: &'a Server<H>,
    plan: Arc<Plan>,
    request: Option<&'a Request>,
    route: &'a Route,
    /// Whether the tool was run, or will be by an action of its own.
    committed: bool,
    baton: Option<Baton>,
}

impl<H: Host> Turn<'_, H> {
    async fn act(&mut self, action: Action) {
        let server = self.server;
        match action {
            Action::Commit => self.execute(),
            Action::Delay(delay) => sleep(delay).await,
            Action::Progress { times, every, foreign } => {
                let own = self.request.map_or(&Value::Null, |request| &request.params["_meta"]["progressToken"]);
                let token = if foreign { json!("a foreign token") } else { own.clone() };
                for step in 1..=times {
                    sleep(every).await;
                    if !token.is_null() {
                        let params = json!({"progressToken": token, "progress": step, "total": times});
                        let method = "notifications/progress";
                        server.send(self.route, json!({"jsonrpc": "2.0", "method": method, "params": params})).await;
                    }
                }
            }
            Action::Hold(wanted) => {
                let (release, released) = oneshot::channel();
                let complete = {
                    let mut state = server.state();
                    state.held.push(release);
                    (state.held.len() >= wanted).then(|| std::mem::take(&mut state.held))
                };
                drop(complete.map(Baton));
                self.baton = released.await.ok();
            }
            Action::ReplayOld => self.replay_old().await,
            Action::Notify { method, params, times, every, standing } => {
                let to = self.to(standing);
                for step in 0..times {
                    if step > 0 {
                        sleep(every).await;
                    }
                    server.notify(&to, &method, params.clone().unwrap_or_else(|| json!({}))).await;
                }
            }
            Action::Request { method, params, wait, standing } => {
                let (answered, answer) = oneshot::channel();
                let id = {
                    let mut state = server.state();
                    state.next_id += 1;
                    let id = state.next_id;
                    state.asked.insert(id, (method.clone(), answered));
                    id
                };
                let message = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
                server.send(&self.to(standing), message).await;
                if wait {
                    // It cannot fail: the other half waits in `asked` for as long as the server lives.
                    drop(answer.await);
                }
            }
            Action::SetTools(tools) => server.state().tools = Some(tools),
            Action::Stop | Action::Never => {}
            Action::Stdout(bytes) => server.write(self.route, Output::Raw(bytes)).await,
            Action::Endless => loop {
                server.write(self.route, Output::Raw(vec![b'x'; 1 << 16])).await;
                tokio::task::yield_now().await;
            },
            Action::Stderr(bytes) => server.host.stderr(bytes).await,
            Action::StderrFill(size) => server.host.stderr(vec![b'e'; size]).await,
            Action::CloseStdin => drop(server.control.send(Order::CloseStdin)),
            Action::CloseStdout => server.host.close_stdout(),
            Action::Deaf => {
                server.host.deaf();
                drop(server.control.send(Order::Deaf));
            }
            Action::Mute => server.state().muted = true,
            Action::Grandchild { hold_stdout, ignore_term } => {
                match server.host.grandchild(Grandchild { hold_stdout, ignore_term }) {
                    Ok(Some(pid)) => server.record(Event::Grandchild { pid }),
                    Ok(None) => {}
                    Err(error) => self.fail("a grandchild", &error).await,
                }
            }
            Action::Bind(port) => {
                if let Err(error) = server.host.bind(port) {
                    self.fail(&format!("port {port}"), &error).await;
                }
            }
            Action::Exit(code) => self.exit(Exit::Code(code), format!("exit {code}")).await,
            Action::Kill => self.exit(Exit::Killed, "kill".into()).await,
            Action::Http(action) => self.http(action).await,
            answer => {
                if let Some(request) = self.request {
                    self.answer(request, answer).await;
                }
            }
        }
    }

    /// Where messages go that are no answer.
    fn to(&self, standing: bool) -> Route {
        let exchange = self.route.exchange.filter(|_| !standing);
        Route { exchange, session: self.route.session.clone() }
    }

    async fn http(&self, action: HttpAction) {
        if self.server.host.speaks_http() {
            self.server.write(self.route, Output::Http(HttpOutput(action))).await;
        } else {
            let error = io::Error::from(io::ErrorKind::Unsupported);
            self.fail("an action of HTTP", &error).await;
        }
    }

    /// The answer that the request waits for.
    async fn settle(&self, message: Value) {
        self.server.write(self.route, Output::Answer(message.to_string())).await;
    }

    async fn answer(&mut self, request: &Request, action: Action) {
        let plan = Arc::clone(&self.plan);
        match action {
            Action::Reply(text) => self.result(request, answer::content(text)).await,
            Action::Result(result) => self.result(request, result).await,
            Action::Error { code, text, data } => self.refuse(request, Refusal { code, text, data }).await,
            Action::IsError(text) => {
                let result = json!({"content": [{"type": "text", "text": text}], "isError": true});
                self.settle(json!({"jsonrpc": "2.0", "id": request.id, "result": result})).await;
            }
            Action::Version(version) => {
                self.result(request, answer::initialize(&plan, request, Some(&version))).await;
            }
            Action::Only(versions) => {
                let requested = request.requested_version().unwrap_or_default();
                let supported: Vec<&str> = versions.iter().map(String::as_str).collect();
                if !supported.contains(&requested) {
                    self.refuse(request, Refusal::version(request, &supported)).await;
                } else if request.method == "initialize" {
                    self.result(request, answer::initialize(&plan, request, Some(requested))).await;
                } else {
                    self.ok(request).await;
                }
            }
            Action::Big(size) => {
                let frame = |text| json!({"jsonrpc": "2.0", "id": request.id, "result": answer::content(text)});
                let padding = size.saturating_sub(frame(String::new()).to_string().len());
                self.result(request, answer::content("x".repeat(padding))).await;
            }
            Action::WrongId => {
                let stranger = Request { id: json!("an id that nobody used"), ..request.clone() };
                self.result(&stranger, answer::content("for nobody".into())).await;
            }
            Action::BadShape => self.result(request, json!({"content": 5, "tools": 5, "protocolVersion": 5})).await,
            Action::Duplicate => {
                if let Ok(Some(result)) = self.well_behaved(request) {
                    self.run(); // before the first answer can be seen
                    let first = json!({"jsonrpc": "2.0", "id": request.id, "result": result});
                    self.server.send(self.route, first).await;
                }
                self.ok(request).await;
            }
            Action::InputRequired(_) if request.continues() => self.ok(request).await,
            Action::InputRequired(requests) => {
                let schema = json!({"type": "object", "properties": {"name": {"type": "string"}}});
                let params = json!({"message": "Who are you?", "requestedSchema": schema});
                let ask = json!({"name": {"method": "elicitation/create", "params": params}});
                let result = json!({
                    "resultType": "input_required",
                    "inputRequests": requests.unwrap_or(ask),
                    "requestState": "round-1",
                });
                self.settle(json!({"jsonrpc": "2.0", "id": request.id, "result": result})).await;
            }
            Action::Task => {
                let mut task = answer::task("working");
                let result = if request.is_modern() {
                    task.insert("resultType".into(), "task".into());
                    Value::Object(task)
                } else {
                    json!({"task": task})
                };
                self.result(request, result).await;
            }
            // Action::Ok; the rest was carried out in `act`.
            _ => self.ok(request).await,
        }
    }

    fn well_behaved(&self, request: &Request) -> Result<Option<Value>, Refusal> {
        let tools = self.server.state().tools.clone();
        answer::answer(&self.plan, tools.as_ref().unwrap_or(&self.plan.tools), request)
    }

    async fn ok(&mut self, request: &Request) {
        if request.gate {
            // Even one that is mute reads on.
            let pass = Output::Http(HttpOutput(HttpAction::Pass));
            return self.server.host.write(self.route, pass).await;
        }
        match self.well_behaved(request) {
            Ok(Some(result)) => self.result(request, result).await,
            Ok(None) => {
                let id = request.id.clone();
                self.server.state().listening.push((self.route.clone(), id.clone()));
                let params = json!({
                    "_meta": {answer::SUBSCRIPTION_KEY: id},
                    "notifications": request.params["notifications"],
                });
                let method = "notifications/subscriptions/acknowledged";
                let message = json!({"jsonrpc": "2.0", "method": method, "params": params});
                self.server.send(self.route, message).await;
            }
            Err(refusal) => self.refuse(request, refusal).await,
        }
    }

    /// Answers with a result; a call that gets one has run.
    async fn result(&mut self, request: &Request, result: Value) {
        self.run();
        self.settle(json!({"jsonrpc": "2.0", "id": request.id, "result": result})).await;
    }

    async fn refuse(&self, request: &Request, refusal: Refusal) {
        let mut error = json!({"message": refusal.text});
        if let Some(code) = refusal.code {
            error["code"] = code.into();
        }
        if let Some(data) = refusal.data {
            error["data"] = data;
        }
        self.settle(json!({"jsonrpc": "2.0", "id": request.id, "error": error})).await;
    }

    /// Runs the tool, unless it was run.
    fn run(&mut self) {
        if !self.committed {
            self.execute();
        }
    }

    fn execute(&mut self) {
        self.committed = true;
        if let Some((request, tool)) = self.request.and_then(|request| Some((request, request.tool()?))) {
            self.server.record(Event::Executed { tool: tool.to_owned(), id: request.id.clone() });
        }
    }

    /// Answers once more what the spawns before this one were asked.
    async fn replay_old(&self) {
        let ledger = match self.server.ledger.read() {
            Ok(ledger) => ledger,
            Err(error) => return self.fail("the ledger", &error).await,
        };
        let spawn = self.server.ledger.spawn();
        for entry in ledger.entries().iter().filter(|entry| entry.spawn < spawn) {
            if let Event::Request { method, id, .. } = &entry.event
                && method == "tools/call"
            {
                let result = answer::content("from an earlier spawn".into());
                self.server.send(self.route, json!({"jsonrpc": "2.0", "id": id, "result": result})).await;
            }
        }
    }

    /// Ends the spawn; nothing of this turn happens after it.
    async fn exit(&self, exit: Exit, reason: String) {
        self.server.record(Event::Exit { reason });
        drop(self.server.control.send(Order::Exit(exit)));
        std::future::pending().await
    }

    async fn fail(&self, what: &str, error: &io::Error) {
        self.server.host.stderr(format!("{what}: {error}\n").into_bytes()).await;
        self.exit(Exit::Code(98), format!("{what}: {error}")).await;
    }
}
