use crate::report::Section;

pub(crate) async fn run() -> Result<Section, String> {
    Err("not built yet".into())
}
