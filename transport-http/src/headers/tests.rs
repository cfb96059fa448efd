use serde_json::json;

use super::*;

fn schema(value: Value) -> Map<String, Value> {
    value.as_object().unwrap().clone()
}

fn headers(method: &str, params: &Value, tool: &Value) -> Vec<(String, String)> {
    let params = serde_json::value::to_raw_value(params).unwrap();
    standard_headers(method, Some(&params), |_| ToolHeaders::of_schema(&schema(tool.clone())).ok())
        .into_iter()
        .map(|(name, value)| (name.as_str().to_owned(), value.to_str().unwrap().to_owned()))
        .collect()
}

fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

#[test]
fn requests_are_named_by_what_they_are_about() {
    let none = json!({});
    for (method, params, name) in [
        ("tools/call", json!({ "name": "add" }), "add"),
        ("prompts/get", json!({ "name": "p" }), "p"),
        ("resources/read", json!({ "uri": "file:///a" }), "file:///a"),
        ("tasks/get", json!({ "taskId": "t1" }), "t1"),
    ] {
        assert_eq!(headers(method, &params, &none), pairs(&[("mcp-method", method), ("mcp-name", name)]));
    }
    assert_eq!(headers("tools/list", &json!({ "name": "x" }), &none), pairs(&[("mcp-method", "tools/list")]));
    assert_eq!(headers("tools/call", &json!({ "name": 1 }), &none), pairs(&[("mcp-method", "tools/call")]));
}

#[test]
fn annotated_arguments_are_repeated_as_headers() {
    let tool = json!({ "properties": {
        "region": { "type": "string", "x-mcp-header": "Region" },
        "dry": { "type": "boolean", "x-mcp-header": "Dry" },
        "absent": { "type": "string", "x-mcp-header": "Absent" },
        "where": { "type": "object", "properties": { "row": { "type": "integer", "x-mcp-header": "Row" } } },
    } });
    let params =
        json!({ "name": "t", "arguments": { "region": "eu", "dry": false, "where": { "row": 3 }, "absent": null } });
    let mut found = headers("tools/call", &params, &tool);
    found.sort();
    let expected = [
        ("mcp-method", "tools/call"),
        ("mcp-name", "t"),
        ("mcp-param-dry", "false"),
        ("mcp-param-region", "eu"),
        ("mcp-param-row", "3"),
    ];
    assert_eq!(found, pairs(&expected));
}

#[test]
fn what_a_header_cannot_hold_is_wrapped() {
    for plain in ["", "plain", "a b", "=?base64?x"] {
        assert_eq!(encode(plain), plain);
    }
    for (value, wrapped) in [
        (" a", "=?base64?IGE=?="),
        ("a\t", "=?base64?YQk=?="),
        ("ä", "=?base64?w6Q=?="),
        ("a\r\nx: y", "=?base64?YQ0KeDogeQ==?="),
        ("=?base64?YQ==?=", "=?base64?PT9iYXNlNjQ/WVE9PT89?="),
    ] {
        assert_eq!(encode(value), wrapped);
        assert!(HeaderValue::from_str(wrapped).is_ok());
        assert_eq!(decode(wrapped).as_deref(), Some(value));
    }
}

#[test]
fn what_is_wrapped_badly_is_not_read() {
    for bad in ["=?base64?SGVsbG8?=", "=?base64?SGVs!!!bG8=?=", "=?base64?/w==?="] {
        assert_eq!(decode(bad), None, "{bad}");
    }
    for plain in ["=?base64?SGVsbG8=", "SGVsbG8=", ""] {
        assert_eq!(decode(plain).as_deref(), Some(plain));
    }
}

#[test]
fn invalid_annotations_are_told() {
    let property = |schema: Value| json!({ "properties": { "a": schema } });
    for invalid in [
        json!({ "x-mcp-header": "Root" }),
        property(json!({ "type": "string", "x-mcp-header": "" })),
        property(json!({ "type": "string", "x-mcp-header": 3 })),
        property(json!({ "type": "string", "x-mcp-header": "a b" })),
        property(json!({ "type": "string", "x-mcp-header": "a:b" })),
        property(json!({ "type": "number", "x-mcp-header": "A" })),
        property(json!({ "type": "object", "x-mcp-header": "A" })),
        property(json!({ "x-mcp-header": "A" })),
        property(json!({ "type": "array", "items": { "type": "string", "x-mcp-header": "A" } })),
        json!({ "anyOf": [property(json!({ "type": "string", "x-mcp-header": "A" }))] }),
        json!({ "$defs": { "d": { "type": "string", "x-mcp-header": "A" } } }),
        json!({ "properties": {
            "a": { "type": "string", "x-mcp-header": "Same" },
            "b": { "type": "string", "x-mcp-header": "same" },
        } }),
    ] {
        assert!(ToolHeaders::of_schema(&schema(invalid.clone())).is_err(), "{invalid}");
    }
}

#[test]
fn a_schema_that_only_speaks_of_the_annotation_is_valid() {
    for valid in [
        json!({ "properties": { "x-mcp-header": { "type": "string" } } }),
        json!({ "properties": { "a": { "type": "string", "default": { "x-mcp-header": "A" } } } }),
        json!({ "description": "x-mcp-header" }),
    ] {
        assert_eq!(ToolHeaders::of_schema(&schema(valid.clone())), Ok(ToolHeaders::default()), "{valid}");
    }
}

#[test]
fn a_listed_tool_is_read_by_its_schema() {
    let tool =
        json!({ "name": "t", "inputSchema": { "properties": { "a": { "type": "string", "x-mcp-header": "A" } } } });
    let read = ToolHeaders::of_tool(&tool.to_string()).unwrap().unwrap();
    assert_eq!(read, ("t".into(), ToolHeaders(vec![(vec!["a".into()], "A".into())])));
    assert_eq!(ToolHeaders::of_tool(r#"{"name":"plain"}"#), Ok(None));
}

#[test]
fn the_version_is_read_from_the_requests_own_words() {
    let params = json!({ "_meta": { "io.modelcontextprotocol/protocolVersion": "2026-07-28" } });
    let params = serde_json::value::to_raw_value(&params).unwrap();
    assert_eq!(version_of(Some(&params)).as_deref(), Some("2026-07-28"));
    assert_eq!(version_of(None), None);
}
