//! Items that the suite asks for by name, as JSON.

use serde_json::{Value, json};

const PIXEL: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg==";
const SILENCE: &str = "UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAIA+AAACABAAZGF0YQAAAAA=";

/// Tools without arguments; those of several rounds are in `rounds`.
const PLAIN: &[&str] = &[
    "test_simple_text",
    "test_image_content",
    "test_audio_content",
    "test_embedded_resource",
    "test_multiple_content_types",
    "test_tool_with_logging",
    "test_logging_tool",
    "test_error_handling",
    "test_tool_with_progress",
    "test_elicitation_sep1034_defaults",
    "test_elicitation_sep1330_enums",
    "test_reconnection",
    "test_missing_capability",
    "test_streaming_elicitation",
    "test_trigger_tool_change",
    "test_trigger_prompt_change",
    "test_input_required_result_elicitation",
    "test_input_required_result_sampling",
    "test_input_required_result_list_roots",
    "test_input_required_result_request_state",
    "test_input_required_result_multiple_inputs",
    "test_input_required_result_multi_round",
    "test_input_required_result_tampered_state",
    "test_input_required_result_capabilities",
];

pub fn tools() -> Value {
    let tool = |name: &str, schema: Value| json!({ "name": name, "description": name, "inputSchema": schema });
    let text =
        |name: &str| json!({ "type": "object", "properties": { name: { "type": "string" } }, "required": [name] });
    let region = json!({ "type": "string", "x-mcp-header": "Region" });
    let mut tools: Vec<Value> =
        PLAIN.iter().map(|name| tool(name, json!({ "type": "object", "properties": {} }))).collect();
    tools.extend([
        tool("test_sampling", text("prompt")),
        tool("test_elicitation", text("message")),
        tool("test_custom_header", json!({ "type": "object", "properties": { "region": region } })),
        tool("json_schema_2020_12_tool", schema()),
    ]);
    Value::Array(tools)
}

/// Every word of JSON Schema 2020-12 that must survive.
fn schema() -> Value {
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "$defs": {
            "address": {
                "$anchor": "addressDef",
                "type": "object",
                "properties": { "street": { "type": "string" }, "city": { "type": "string" } },
            },
        },
        "properties": {
            "name": { "type": "string" },
            "address": { "$ref": "#/$defs/address" },
            "contactMethod": { "type": "string", "enum": ["phone", "email"] },
            "phone": { "type": "string" },
            "email": { "type": "string" },
        },
        "allOf": [{ "anyOf": [{ "required": ["phone"] }, { "required": ["email"] }] }],
        "if": { "properties": { "contactMethod": { "const": "phone" } }, "required": ["contactMethod"] },
        "then": { "required": ["phone"] },
        "else": { "required": ["email"] },
        "additionalProperties": false,
    })
}

/// Content of the answer of a tool that only answers.
pub fn content(tool: &str) -> Option<Value> {
    let image = json!({ "type": "image", "data": PIXEL, "mimeType": "image/png" });
    let resource = |uri: &str, kind: &str, text: &str| json!({ "type": "resource", "resource": { "uri": uri, "mimeType": kind, "text": text } });
    Some(match tool {
        "test_simple_text" => json!([{ "type": "text", "text": "This is a simple text response for testing." }]),
        "test_image_content" => json!([image]),
        "test_audio_content" => json!([{ "type": "audio", "data": SILENCE, "mimeType": "audio/wav" }]),
        "test_embedded_resource" => {
            json!([resource("test://embedded-resource", "text/plain", "This is an embedded resource content.")])
        }
        "test_multiple_content_types" => json!([
            { "type": "text", "text": "Multiple content types test:" },
            image,
            resource("test://mixed-content-resource", "application/json", r#"{"test":"data","value":123}"#),
        ]),
        "json_schema_2020_12_tool" | "test_custom_header" | "test_reconnection" | "test_streaming_elicitation" => {
            json!([{ "type": "text", "text": "done" }])
        }
        _ => return None,
    })
}

/// Question of a tool to its user, in the era in which servers ask.
pub fn elicitation(tool: &str, message: &str) -> Option<Value> {
    let choices = |key: &str, word: &str| {
        json!({ key: [
        { "const": "value1", "title": format!("First {word}") },
        { "const": "value2", "title": format!("Second {word}") },
        { "const": "value3", "title": format!("Third {word}") },
    ] })
    };
    let with_type = |kind: &str, mut schema: Value| {
        schema["type"] = kind.into();
        schema
    };
    let options = json!(["option1", "option2", "option3"]);
    let properties = match tool {
        "test_elicitation" => json!({
            "username": { "type": "string", "description": "User's response" },
            "email": { "type": "string", "description": "User's email address" },
        }),
        "test_elicitation_sep1034_defaults" => json!({
            "name": { "type": "string", "default": "John Doe" },
            "age": { "type": "integer", "default": 30 },
            "score": { "type": "number", "default": 95.5 },
            "status": { "type": "string", "enum": ["active", "inactive", "pending"], "default": "active" },
            "verified": { "type": "boolean", "default": true },
        }),
        "test_elicitation_sep1330_enums" => json!({
            "untitledSingle": { "type": "string", "enum": options },
            "titledSingle": with_type("string", choices("oneOf", "Option")),
            "legacyEnum": {
                "type": "string",
                "enum": ["opt1", "opt2", "opt3"],
                "enumNames": ["Option One", "Option Two", "Option Three"],
            },
            "untitledMulti": { "type": "array", "items": { "type": "string", "enum": options } },
            "titledMulti": { "type": "array", "items": choices("anyOf", "Choice") },
        }),
        _ => return None,
    };
    let required = if tool == "test_elicitation" { json!(["username", "email"]) } else { json!([]) };
    let schema = json!({ "type": "object", "properties": properties, "required": required });
    Some(json!({ "mode": "form", "message": message, "requestedSchema": schema }))
}

pub fn resources() -> Value {
    json!([
        { "uri": "test://static-text", "name": "text", "description": "A text", "mimeType": "text/plain" },
        { "uri": "test://static-binary", "name": "binary", "description": "An image", "mimeType": "image/png" },
        { "uri": "test://watched-resource", "name": "watched", "description": "A text", "mimeType": "text/plain" },
    ])
}

pub fn templates() -> Value {
    json!([{
        "uriTemplate": "test://template/{id}/data",
        "name": "template",
        "description": "Data by id",
        "mimeType": "application/json",
    }])
}

pub fn contents(uri: &str) -> Option<Value> {
    let text = |text: &str| json!([{ "uri": uri, "mimeType": "text/plain", "text": text }]);
    Some(match uri {
        "test://static-text" => text("This is the content of the static text resource."),
        "test://watched-resource" => text("watched"),
        "test://static-binary" => json!([{ "uri": uri, "mimeType": "image/png", "blob": PIXEL }]),
        _ => {
            let id = uri.strip_prefix("test://template/")?.strip_suffix("/data")?;
            let data = json!({ "id": id, "templateTest": true, "data": format!("Data for ID: {id}") });
            json!([{ "uri": uri, "mimeType": "application/json", "text": data.to_string() }])
        }
    })
}

pub fn prompts() -> Value {
    let argument = |name: &str| json!({ "name": name, "description": name, "required": true });
    let prompt = |name: &str, arguments: Value| json!({ "name": name, "description": name, "arguments": arguments });
    json!([
        prompt("test_simple_prompt", json!([])),
        prompt("test_prompt_with_arguments", json!([argument("arg1"), argument("arg2")])),
        prompt("test_prompt_with_embedded_resource", json!([argument("resourceUri")])),
        prompt("test_prompt_with_image", json!([])),
        prompt("test_input_required_result_prompt", json!([])),
    ])
}

/// The messages of a prompt.
pub fn messages(prompt: &str, arguments: &Value) -> Option<Value> {
    let text = |text: String| json!({ "role": "user", "content": { "type": "text", "text": text } });
    let argument = |name: &str| arguments[name].as_str().unwrap_or_default();
    Some(match prompt {
        "test_simple_prompt" => json!([text("This is a simple prompt for testing.".into())]),
        "test_prompt_with_arguments" => {
            json!([text(format!("Prompt with arguments: arg1='{}', arg2='{}'", argument("arg1"), argument("arg2")))])
        }
        "test_prompt_with_embedded_resource" => {
            let text_of = "Embedded resource content for testing.";
            let resource = json!({ "uri": argument("resourceUri"), "mimeType": "text/plain", "text": text_of });
            let content = json!({ "type": "resource", "resource": resource });
            json!([
                { "role": "user", "content": content },
                text("Please process the embedded resource above.".into()),
            ])
        }
        "test_prompt_with_image" => json!([
            { "role": "user", "content": { "type": "image", "data": PIXEL, "mimeType": "image/png" } },
            text("Please analyze the image above.".into()),
        ]),
        _ => return None,
    })
}
