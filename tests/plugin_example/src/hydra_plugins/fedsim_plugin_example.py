"""Hydra imports every module of `hydra_plugins`: this one puts the package's YAML on the search path."""

from hydra.core.config_search_path import ConfigSearchPath
from hydra.plugins.search_path_plugin import SearchPathPlugin


class FedsimPluginExample(SearchPathPlugin):
    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        search_path.append("fedsim-plugin-example", "pkg://fedsim_plugin_example.conf")
