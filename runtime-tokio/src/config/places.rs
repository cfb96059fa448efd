//! Where configs are kept.

use std::path::{Path, PathBuf};

/// Where to look for a config when none is named, the first first: the project's files before the user's, and of each
/// ours before those of other clients.
///
/// `cwd` is the project, `home` the user's home directory, `config_home` what `XDG_CONFIG_HOME` says (relative paths
/// count as unset; default `~/.config`). Nothing is looked at. A file of the project may have come with somebody else's
/// code, and names commands to run: ask the user before it is used for the first time, as the clients do.
pub fn usual_places(cwd: &Path, home: Option<&Path>, config_home: Option<&Path>) -> Vec<PathBuf> {
    let project = [
        "mcp-reconnect.json",
        ".mcp.json",
        ".cursor/mcp.json",
        ".vscode/mcp.json",
        ".gemini/settings.json",
        ".roo/mcp.json",
        "opencode.json",
        ".zed/settings.json",
    ];
    let mut places: Vec<_> = project.iter().map(|name| cwd.join(name)).collect();
    let config_home = config_home.filter(|path| path.is_absolute()).map(Path::to_path_buf);
    let config_home = config_home.or_else(|| home.map(|home| home.join(".config")));
    if let Some(config) = &config_home {
        places.push(config.join("mcp-reconnect/config.json"));
    }
    if let Some(home) = home {
        let user = [".claude.json", ".cursor/mcp.json", ".gemini/settings.json", ".codeium/windsurf/mcp_config.json"];
        places.extend(user.iter().map(|name| home.join(name)));
    }
    // Where programs with windows keep their settings.
    let settings = if cfg!(target_os = "macos") {
        home.map(|home| home.join("Library/Application Support"))
    } else if cfg!(windows) {
        home.map(|home| home.join("AppData/Roaming"))
    } else {
        config_home.clone()
    };
    if let Some(settings) = settings {
        places.push(settings.join("Code/User/mcp.json"));
        places.push(settings.join("Claude/claude_desktop_config.json"));
    }
    if let Some(config) = config_home {
        places.extend([config.join("opencode/opencode.json"), config.join("zed/settings.json")]);
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ours_come_first_and_the_project_before_the_user() {
        let places = usual_places(Path::new("/p"), Some(Path::new("/h")), None);
        let at = |path: &str| places.iter().position(|place| place == Path::new(path)).expect(path);
        assert_eq!(at("/p/mcp-reconnect.json"), 0);
        let ordered =
            ["/p/.mcp.json", "/p/.cursor/mcp.json", "/p/.vscode/mcp.json", "/h/.config/mcp-reconnect/config.json"];
        assert!(ordered.map(at).is_sorted());
        assert!(at("/h/.config/mcp-reconnect/config.json") < at("/h/.cursor/mcp.json"));
        assert!(places.iter().any(|place| place.ends_with("claude_desktop_config.json")));
    }

    #[test]
    fn the_config_home_counts_where_it_is_absolute() {
        let ours = |config_home: &str| {
            let places = usual_places(Path::new("/p"), Some(Path::new("/h")), Some(Path::new(config_home)));
            places.into_iter().find(|place| place.ends_with("mcp-reconnect/config.json"))
        };
        assert_eq!(ours("/x"), Some("/x/mcp-reconnect/config.json".into()));
        assert_eq!(ours("x"), Some("/h/.config/mcp-reconnect/config.json".into()));
        let alone = usual_places(Path::new("/p"), None, None);
        assert!(alone.iter().all(|place| place.starts_with("/p")), "{alone:?}");
    }
}
