#include <string>

#include "absl/strings/str_cat.h"
#include "tests/fuzz/smoke.h"

namespace {

using ::std::string;

// Encodes a small number in one byte, as Input::Number of the fuzz target reads it.
string Small(int64_t number) { return string(1, static_cast<char>(number + 8)); }

string Npy(std::mt19937_64& random) {
  string header = absl::StrCat("{'descr': '|u1', 'fortran_order': False, 'shape': (", random() % 4, ", 2, 3), }");
  header.resize(117, ' ');
  return absl::StrCat(string("\x93NUMPY\x01\x00\x76\x00", 10), header, "\n", string(12, '\1'));
}

string Geometry(std::mt19937_64& random) {
  const auto count = static_cast<int64_t>(1 + random() % 4);
  string seed = Small(count) + string(1, static_cast<char>(count));
  for (int64_t layer = 0; layer < count; ++layer) seed += Small(layer);
  for (int64_t layer = 0; layer < count; ++layer) seed += Small(8 + random() % 120) + Small(1 + random() % 8);
  return seed;
}

string Make(uint8_t kind, std::mt19937_64& random) {
  switch (kind % 5) {
    case 0:
      return Geometry(random);
    case 1:  // 3 axes, no layer ids, then encoding, compression, dtype and basis; raw size 0.
      return absl::StrCat("\3", Small(2), Small(2), Small(3), string(1, '\0'), string(1, random() % 4), string(1, '\0'),
                          string(1, random() % 7), string(2, '\0'), Small(0), string(1, '\0'), Npy(random));
    case 2:
      return R"({"choices": [{"routed_experts": "AAAA"}, {"index": 1}], "meta_info": {"routed_experts": "BBBB"}})";
    case 3:
      return absl::StrCat(string(1, random() % 7), Small(1), string(8 * (random() % 5), '\0'));
    default:
      return absl::StrCat("sample/", random() % 100);
  }
}

}  // namespace

std::vector<uint8_t> MakeSeed(std::mt19937_64& random) {
  const auto kind = static_cast<uint8_t>(random());
  const string seed = string(1, static_cast<char>(kind)) + Make(kind, random);
  return {seed.begin(), seed.end()};
}
