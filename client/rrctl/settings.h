// What a command line of rrctl asks for.
#ifndef CLIENT_RRCTL_SETTINGS_H_
#define CLIENT_RRCTL_SETTINGS_H_

#include <unistd.h>

#include <chrono>
#include <string>
#include <vector>

#include "client/rrctl/bench/bench.h"
#include "client/rrctl/compare/diff.h"
#include "client/rrctl/diagnose.h"
#include "client/rrctl/doctor/doctor.h"
#include "client/rrctl/get.h"
#include "client/rrctl/inspect.h"
#include "client/rrctl/output.h"
#include "client/rrctl/put.h"
#include "client/rrctl/report/gather.h"
#include "client/rrctl/token.h"
#include "client/rrctl/transfer.h"
#include "client/rrctl/watch.h"

namespace routing_replay::client {

struct Settings {
  std::string endpoint;  // Empty: the environment's.
  SecuritySettings security;
  int timeout_s = 10;
  Format format = IsTerminal(STDOUT_FILENO) ? Format::kTable : Format::kJson;

  std::string run;
  std::vector<std::string> samples;
  bool dry_run = false;
  bool yes = false;
  Producer producer = Producer::kRollout;
  bool watching = false;
  WatchOptions watch;
  GetOptions get;
  PutOptions put;
  TransferOptions transfer;
  BenchOptions bench;
  std::string bench_json;  // Files that get the figures too; empty: none.
  std::string bench_csv;
  bool explain = false;
  DiagnoseOptions diagnose;
  TokenOptions token;
  DiffOptions diff;
  DoctorOptions doctor;
  ReportOptions report;
  std::string report_file = "report.html";  // "-": standard output.
  bool replace_report = false;
  std::string shell;
};

}  // namespace routing_replay::client

#endif  // CLIENT_RRCTL_SETTINGS_H_
