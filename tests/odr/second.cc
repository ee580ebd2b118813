namespace routing_replay::testing {

struct Planted {
  double bytes = 0;
};

double Second(const Planted& planted) { return planted.bytes; }

}  // namespace routing_replay::testing
