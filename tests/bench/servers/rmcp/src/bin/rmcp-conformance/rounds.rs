//! Tools and prompts that need input of the host before they answer (MRTR, from 2026-07-28).

use rmcp::model::{ClientCapabilities, ErrorData, InputRequiredResult, InputResponses};
use serde_json::{Value, json};

/// The state of a round, with what a change of it is seen by.
const STATE: &str = "round-1:5f3759df";
const SECOND_STATE: &str = "round-2:5f3759df";

/// Result of a round of a call or prompt of several rounds.
pub enum Round {
    /// Input is needed.
    Ask(InputRequiredResult),
    /// The final text.
    Done(String),
}

/// Plays a round; `None` where it has no rounds.
pub fn play(
    name: &str,
    responses: Option<&InputResponses>,
    state: Option<&str>,
    capabilities: Option<ClientCapabilities>,
) -> Option<Result<Round, ErrorData>> {
    let name = name.strip_prefix("test_input_required_result_")?;
    let round = match name {
        "elicitation" => simple(responses, "user_name", ask_text("What is your name?", "name"), "name"),
        "prompt" => {
            simple(responses, "user_context", ask_text("What context should the prompt use?", "context"), "context")
        }
        "sampling" => answered(responses, "capital_question", ask_sampling("What is the capital of France?", 100)),
        "list_roots" => answered(responses, "client_roots", ask_roots()),
        "request_state" | "tampered_state" => stateful(responses, state),
        "multiple_inputs" => multiple(responses),
        "multi_round" => rounds(responses, state),
        "capabilities" => Ok(by_capability(capabilities.unwrap_or_default())),
        _ => return None,
    };
    Some(round)
}

fn ask(requests: Value, state: Option<&str>) -> Result<Round, ErrorData> {
    let mut result = json!({ "resultType": "input_required", "inputRequests": requests });
    if let Some(state) = state {
        result["requestState"] = state.into();
    }
    let result = serde_json::from_value(result);
    result.map(Round::Ask).map_err(|error| ErrorData::internal_error(error.to_string(), None))
}

fn ask_text(message: &str, field: &str) -> Value {
    let schema = json!({ "type": "object", "properties": { field: { "type": "string" } }, "required": [field] });
    json!({ "method": "elicitation/create", "params": { "mode": "form", "message": message, "requestedSchema": schema } })
}

fn ask_sampling(text: &str, tokens: u32) -> Value {
    let messages = json!([{ "role": "user", "content": { "type": "text", "text": text } }]);
    json!({ "method": "sampling/createMessage", "params": { "messages": messages, "maxTokens": tokens } })
}

fn ask_roots() -> Value {
    json!({ "method": "roots/list", "params": {} })
}

/// One field of one form.
fn simple(responses: Option<&InputResponses>, key: &str, request: Value, field: &str) -> Result<Round, ErrorData> {
    match responses.and_then(|responses| responses.get(key)?["content"][field].as_str()) {
        Some(text) => Ok(Round::Done(format!("Hello, {text}!"))),
        None => ask(json!({ key: request }), None),
    }
}

/// One answer of whatever form.
fn answered(responses: Option<&InputResponses>, key: &str, request: Value) -> Result<Round, ErrorData> {
    match responses.and_then(|responses| responses.get(key)) {
        Some(answer) => Ok(Round::Done(answer.to_string())),
        None => ask(json!({ key: request }), None),
    }
}

fn stateful(responses: Option<&InputResponses>, state: Option<&str>) -> Result<Round, ErrorData> {
    match (responses, state) {
        (_, Some(state)) if state != STATE => Err(ErrorData::invalid_params("the state was tampered with", None)),
        (Some(responses), Some(_)) if responses.contains_key("confirm") => Ok(Round::Done("state-ok".into())),
        _ => {
            let schema = json!({ "type": "object", "properties": { "ok": { "type": "boolean" } }, "required": ["ok"] });
            let params = json!({ "mode": "form", "message": "Please confirm", "requestedSchema": schema });
            ask(json!({ "confirm": { "method": "elicitation/create", "params": params } }), Some(STATE))
        }
    }
}

fn multiple(responses: Option<&InputResponses>) -> Result<Round, ErrorData> {
    let keys = ["user_name", "greeting", "client_roots"];
    if responses.is_some_and(|responses| keys.iter().all(|key| responses.contains_key(*key))) {
        return Ok(Round::Done("all were answered".into()));
    }
    let requests = json!({
        "user_name": ask_text("What is your name?", "name"),
        "greeting": ask_sampling("Generate a greeting", 50),
        "client_roots": ask_roots(),
    });
    ask(requests, Some(STATE))
}

fn rounds(responses: Option<&InputResponses>, state: Option<&str>) -> Result<Round, ErrorData> {
    match (responses, state) {
        (Some(_), Some(SECOND_STATE)) => Ok(Round::Done("both steps are done".into())),
        (Some(_), Some(STATE)) => {
            ask(json!({ "step2": ask_text("Step 2: What is your favorite color?", "color") }), Some(SECOND_STATE))
        }
        _ => ask(json!({ "step1": ask_text("Step 1: What is your name?", "name") }), Some(STATE)),
    }
}

fn by_capability(capabilities: ClientCapabilities) -> Round {
    let mut requests = json!({});
    if capabilities.sampling.is_some() {
        requests["question"] = ask_sampling("What is the capital of France?", 100);
    }
    if capabilities.elicitation.is_some() {
        requests["name"] = ask_text("What is your name?", "name");
    }
    ask(requests, None).unwrap_or_else(|error| Round::Done(error.to_string()))
}
