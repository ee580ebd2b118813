// What rrctl bench measured, in the form in which the project gives all its figures.
#ifndef CLIENT_RRCTL_BENCH_FIGURES_H_
#define CLIENT_RRCTL_BENCH_FIGURES_H_

#include <string>
#include <vector>

#include "client/rrctl/table.h"

namespace routing_replay::client {

// {"name", "median", "min", "max", "unit", "floor": null, "ratio": null}. `values` are not empty.
Document Figure(const std::string& name, std::vector<double> values, const std::string& unit);

// The value below which `fraction` of the values are (nearest rank). `values` are not empty.
double Quantile(std::vector<double> values, double fraction);

// {"cpus", "machine", "kernel"}: what the figures were measured on.
Document DescribeHost();

// Figures as columns for people: an array with values in units that fit.
Document FigureTable(const Document& figures);

// Figures as CSV with exact numbers, a line of names first: "figure,median,min,max,unit".
std::string FigureCsv(const Document& figures);

}  // namespace routing_replay::client

#endif  // CLIENT_RRCTL_BENCH_FIGURES_H_
