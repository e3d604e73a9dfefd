"""Labels that an audit's settings state."""

from attacks.running import GIVEN
from fedsim.report.run.read import read_run
from fedsim.report.run.summary import remarks
from tests.experiments.run_files import rows


def test_an_audits_page_says_that_they_were_given(audit):
    batch = ["audit.num_images=2", "audit.batch_size=2"]
    given = ["attack=[tag,dlg]", "attack.tag.labels=[3,7]", "attack.tag.steps=1", "attack.dlg.labels=[3]"]
    folder = audit(*batch, *given)
    served, other = rows(folder, "attacks")
    assert (served["status"], served["reason"], served["label_exact"]) == ("done", GIVEN, None)
    assert other["status"] == "refused"
    assert other["reason"] == "labels=[3]: must be one class for each image of the update, which has 2"
    assert [group.reason for group in remarks(read_run(folder))] == [GIVEN]
    assert f'<td class="long">{GIVEN}</td>' in (folder / "report.html").read_text()
