"""What `--help` says by itself: one screen a command."""

ALL = {
    "fedsim": "a federated training, and attacks on the updates of its clients",
    "fedsim-audit": "attacks on what clients would share, without a federation",
    "fedsim-matrix": "every attack against every defense, beside what each defense costs",
    "fedsim-measure": "trained models compared: positions, jigsawed pictures, corruptions",
    "fedsim-prior": "trains what some attacks bring along: a generator, or LTI's network",
    "fedsim-report": "pages of runs, built anew or side by side",
}
"""What each command is for."""

SETTINGS = {
    "fedsim": """\
  num_clients=40 num_rounds=90 seed=0      the federation
  strategy=fedavg client.local_steps=1     local training, of client.batch_size=1 images a step
  model.name=vit_small_patch16_224         any timm ViT by name; model.img_size, model.patch_size
  data=imagefolder data.path=DIR           a folder of class folders
  observe.every=20 observe.clients=2       whose updates are attacked
  run_dir=DIR                              where everything goes; the report is DIR/report.html
  resume=DIR                               go on with an interrupted run; DIR keeps its settings""",
    "fedsim-audit": """\
  audit.num_images=16 audit.batch_size=1   how many images, and how many in one update
  audit.select=random                      random | per_class | first | [ids of images]
  client.share=gradient                    gradient | delta | weights; the two: client.local_steps=1
  model.name=vit_small_patch16_224         any timm ViT by name; model.img_size, model.patch_size
  data=imagefolder data.path=DIR           a folder of class folders
  observation=RUN/observations             attack what a federated run recorded
  run_dir=DIR                              scores.csv, report.html; the same folder goes on""",
    "fedsim-matrix": """\
  matrix.rows=[none,mjp]                   only these defenses; matrix.columns: only these attacks
  matrix.state=both                        attack the untrained and the trained model
  matrix.seeds=3                           three trainings of each row: mean and spread
  matrix.every_defense=false               only the rows that matrix.defenses names
  num_clients=10 num_rounds=80             the federation of each row
  audit.num_images=8                       images behind each cell
  run_dir=DIR                              matrix.html, .csv, .json; the same folder goes on""",
    "fedsim-measure": """\
  runs=[DIR,DIR]                           folders of runs or sweeps; their last checkpoints count
  names=[baseline,mjp]                     what to call them; equal names are repetitions
  measure.num_images=1000                  test images, those that the runs' data set aside
  measure.ratios=[0,0.09,0.27]             mask ratios of the jigsawed images
  measure.corruptions.names=all            errors on the fifteen common corruptions
  measure.hard=DIR measure.foreign=DIR     folders like ImageNet-A and ImageNet-O
  run_dir=DIR                              measures.json, .md, .csv, figures/ and report.html""",
    "fedsim-prior": """\
  kind=generator                           generator (for gias, gifd, ggl) | lti
  data.auxiliary_fraction=0.5              share of the images that no client holds: learned from
  prior.exclude_classes=[cat,dog]          classes to leave out
  prior.generator.steps=6000               how long; prior.lti.steps for lti
  client.batch_size=4                      with kind=lti: images behind an update
  defense=[topk]                           with kind=lti: what the updates have gone through
  run_dir=DIR                              the checkpoint and samples.png; the same folder goes on""",
}
"""What is set most often."""

EXAMPLES = {
    "fedsim": """\
  fedsim defense=[fixed_pe] attack=[patch_gradient,labels]
  fedsim strategy=fedavg client.batch_size=16 client.local_epochs=2
  fedsim -m 'defense=[],[fixed_pe]' attack=[first_block]   a sweep; one page compares its runs""",
    "fedsim-audit": """\
  fedsim-audit data=imagefolder data.path=DIR attack=[patch_gradient,labels] defense=[fixed_pe]
  fedsim-audit defense=[gradient_noise] defense.gradient_noise.relative_norm=1e-4
  fedsim-audit -m client.optimizer.lr=0.1,0.01 client.share=delta       a sweep, compared""",
    "fedsim-matrix": """\
  fedsim-matrix matrix.rows=[none,fixed_pe] matrix.columns=[patch_gradient,row_space]
  fedsim-matrix data=imagefolder data.path=DIR model=vit_tiny_4_32 matrix.state=both
  fedsim-matrix '+matrix.defenses.mine=[topk,"topk.ratio=0.01"]' matrix.rows=[none,mine]""",
    "fedsim-measure": """\
  fedsim-measure runs=[runs/baseline,runs/mjp]
  fedsim-measure runs=[runs/sweep] measure.corruptions.names=all
  fedsim-measure model=deit_small model.checkpoint=FILE data=imagefolder data.path=DIR""",
    "fedsim-prior": """\
  fedsim-prior data=imagefolder data.path=DIR data.auxiliary_fraction=0.5 model=lenet_dlg
  fedsim-prior kind=lti data=imagefolder data.path=DIR model=lenet_dlg defense=[topk]""",
}
"""What is typed most often."""
