namespace routing_replay::testing {

struct Planted {
  int rows = 0;
};

int First(const Planted& planted) { return planted.rows; }

}  // namespace routing_replay::testing
