#include "client/rrctl/output.h"

#include <sstream>

namespace routing_replay::client {

std::string ToJsonLine(const Document& document) {
  return document.dump(/*indent=*/-1, ' ', /*ensure_ascii=*/false, Document::error_handler_t::replace);
}

std::string ToText(const Document& document, Layout layout, const Style& style,
                   const std::map<std::string, std::string>& notes) {
  std::ostringstream out;
  if (layout == Layout::kColumns) {
    TableWriter(out, style).Add(document);
  } else if (document.is_array()) {
    bool first = true;
    for (const Document& object : document) {
      if (!first) out << "\n";
      first = false;
      PrintRecord(object, out, style, notes);
    }
  } else {
    PrintRecord(document, out, style, notes);
  }
  return out.str();
}

void Output::Print(const Document& document, Layout layout) {
  out_ << (format_ == Format::kJson ? ToJsonLine(document) + "\n" : ToText(document, layout, style_));
}

absl::Status Output::Flush() {
  out_.flush();
  return out_.good() ? absl::OkStatus() : absl::DataLossError("cannot write to standard output");
}

absl::Status Output::Stream::Add(const Document& rows) {
  if (output_.format_ == Format::kTable) {
    table_.Add(rows);
  } else {
    for (const Document& row : rows) {
      output_.out_ << (empty_ ? "[\n" : ",\n") << ToJsonLine(row);
      empty_ = false;
    }
  }
  return output_.Flush();
}

absl::Status Output::Stream::End() {
  if (output_.format_ == Format::kJson) output_.out_ << (empty_ ? "[]\n" : "\n]\n");
  return output_.Flush();
}

}  // namespace routing_replay::client
