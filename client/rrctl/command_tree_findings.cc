// The commands that read rows and tell what is in them.
#include "client/rrctl/command_tree.h"

namespace routing_replay::client {

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

void CommandTree::AddDoctor() {
  CLI::App* doctor =
      Add("doctor",
          "say whether this machine can use the server, and if not, why and what to do\n"
          "Name, proxy variables, connection, TLS, service, version, limits, latency and clock of every "
          "server of the endpoint; then what the token may do, and how fast rows go up and down. Exit code "
          "1 where a check failed.",
          &Session::Doctor);
  doctor->add_flag("!--no-transfer", settings_.doctor.transfer, "make no scratch run, and do not measure bandwidth");
  doctor
      ->add_option("--scratch-run", settings_.doctor.scratch,
                   "beginning of the scratch run's name, where a token is for some runs alone")
      ->capture_default_str()
      ->type_name("NAME");
}

void CommandTree::AddReport() {
  ReportOptions& options = settings_.report;
  CLI::App* report =
      Add("report",
          "draw a run's routes into one HTML file\n"
          "Expert load, balance over groups and weight versions, how alike neighbouring tokens are, lengths, "
          "missing rows, and what the trainer recorded otherwise. What needs the rows themselves is of some samples, "
          "of which the page says how many.",
          &Session::Report);
  AddRun(report, options.run);
  report->add_option("-o,--output", settings_.report_file, "the file; - is standard output")
      ->capture_default_str()
      ->type_name("FILE");
  report->add_flag("--force", settings_.replace_report, "replace a file of that name");
  report->add_option("--samples", options.samples, "read the rows of so many samples, chosen by chance")
      ->capture_default_str()
      ->type_name("N")
      ->check(CLI::Range(int64_t{1}, int64_t{1000000}));
  report->add_option("--seed", options.seed, "of the choice: the same seed reads the same samples")
      ->capture_default_str()
      ->type_name("N");
}

}  // namespace routing_replay::client
