// The commands that read rows and tell what is in them.
#include "client/rrctl/command_tree.h"

namespace routing_replay {

void CommandTree::AddDiff() {
  DiffOptions& options = settings_.diff;
  CLI::App* diff = Add("diff",
                       "compare the experts of two samples, or of one sample's two producers\n"
                       "Names the first row and layer that differ, and counts rows and layers; the same experts in "
                       "another order are counted apart. Exit code 1 where they differ.",
                       &Session::Diff);
  diff->add_option("A", options.a, "RUN:SAMPLE, or with --run SAMPLE")->required();
  diff->add_option("B", options.b,
                   "likewise; left out: what the trainer recorded of A (R2), against what the rollout engine did (R3)");
  diff->add_option("--run", options.run, "the run that both are of")->type_name("RUN");
  AddTrainerFlag(diff, options.producer);
}

}  // namespace routing_replay
