//! The keys of the table and their actions.

use crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Action {
    Up,
    Down,
    Wake,
    Park,
    Reload,
    Quit,
}

/// The action that a key asks for, if any.
pub(super) fn action(key: &KeyEvent) -> Option<Action> {
    if key.kind == KeyEventKind::Release {
        return None;
    }
    if key.modifiers.contains(KeyModifiers::CONTROL) {
        return (key.code == KeyCode::Char('c')).then_some(Action::Quit);
    }
    match key.code {
        KeyCode::Up | KeyCode::Char('k') => Some(Action::Up),
        KeyCode::Down | KeyCode::Char('j') => Some(Action::Down),
        KeyCode::Char('w') => Some(Action::Wake),
        KeyCode::Char('p') => Some(Action::Park),
        KeyCode::Char('r') => Some(Action::Reload),
        KeyCode::Char('q') => Some(Action::Quit),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_ask_for_what_the_help_says() {
        let of = |code, modifiers| action(&KeyEvent::new(code, modifiers));
        let plain = |code| of(code, KeyModifiers::NONE);
        assert_eq!(plain(KeyCode::Up), Some(Action::Up));
        assert_eq!(plain(KeyCode::Down), Some(Action::Down));
        let letters = "kjwprqx".chars().map(|c| plain(KeyCode::Char(c)));
        let wanted = [Action::Up, Action::Down, Action::Wake, Action::Park, Action::Reload, Action::Quit];
        assert!(letters.eq(wanted.map(Some).into_iter().chain([None])));
        assert_eq!(of(KeyCode::Char('c'), KeyModifiers::CONTROL), Some(Action::Quit));
        assert_eq!(of(KeyCode::Char('p'), KeyModifiers::CONTROL), None);
        assert_eq!(plain(KeyCode::Char('c')), None);
        let released = KeyEvent::new_with_kind(KeyCode::Char('q'), KeyModifiers::NONE, KeyEventKind::Release);
        assert_eq!(action(&released), None);
    }
}
