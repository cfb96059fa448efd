use crate::Race;
use crate::report::Section;

pub(crate) async fn run(_race: &Race) -> Result<Section, String> {
    Err("not built yet".into())
}
