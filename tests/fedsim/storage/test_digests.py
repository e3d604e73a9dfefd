import hashlib

from fedsim.storage.digests import file_sha256


def test_a_files_digest_is_that_of_its_bytes(tmp_path):
    content = bytes(range(256)) * 5000
    (tmp_path / "file").write_bytes(content)
    assert file_sha256(tmp_path / "file") == hashlib.sha256(content).hexdigest()
