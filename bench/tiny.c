/* The smallest program there is: what starting it takes is what starting takes. */
int main(void) { return 0; }
