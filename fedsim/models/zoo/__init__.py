"""Models of papers that timm does not have; importing a module registers its models with timm."""
